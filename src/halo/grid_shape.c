/* SPDX-License-Identifier: MIT-0 */
/* Computes where the points of an array are, from its type and its dpar_grid_field: the default
 * strides, the halo with the faces between cells, and the first and the last address. */
#include "grid_shape.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../index/halo.h"
#include "grid_cut.h"
#include "halo_plan.h"

DPARI_INTERNAL int64_t dpari_gx_points(const dpari_gx *grid, const dpar_grid_field *field,
                                       int32_t d)
{
    return grid->low[d] + grid->head.count[d] + (field->location[d] != 0) + grid->high[d];
}

DPARI_INTERNAL int64_t dpari_gx_width(const dpari_gx *grid, int32_t depth, int32_t d, int side)
{
    const int64_t w = side ? grid->high[d] : grid->low[d];
    return depth > 0 ? dpari_least(w, depth) : w;
}

/* Checks type, components and points of an array. */
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
    if (field->components < 0 || field->components > 1 << 24 || field->order < 0 ||
        field->order > 1) {
        return dpari_wrong(
            why,
            "grid: field.components is %d (0 to 2^24 allowed) and field.order %d (0 or 1 "
            "allowed)",
            field->components, field->order);
    }
    count = field->components > 1 ? field->components : 1;
    none = count > 31 ? 0 : ~(uint32_t)0 << count;
    for (d = 0; d < grid->head.dims; d++) {
        if (field->location[d] < 0 || field->location[d] > 1) {
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
        if (field->mirror_low[d] < 0 || field->mirror_low[d] > DPAR_GRID_MIRROR_OFF ||
            field->mirror_high[d] < 0 || field->mirror_high[d] > DPAR_GRID_MIRROR_OFF ||
            (grid->desc.periodic[d] && (field->mirror_low[d] | field->mirror_high[d]) != 0)) {
            return dpari_wrong(
                why,
                "grid: field.mirror_low[%d] is %d and mirror_high[%d] %d; they must be 0 to 3, "
                "and 0 in a periodic dim",
                d, field->mirror_low[d], d, field->mirror_high[d]);
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

/* Checks the directions of the components. field: with resolved mirrors. */
static DPARI_COLD dpar_status dpari_gx_check_directions(const dpari_gx *grid,
                                                        const dpar_grid_field *field, dpar_why *why)
{
    int32_t d, k;
    if (!field->direction) {
        return DPAR_OK;
    }
    if (field->components > DPARI_GX_DIRECTIONS) {
        return dpari_wrong(why,
                           "grid: field.direction is set, but components is %d; with directions it "
                           "must be 1 to %d",
                           field->components, (int32_t)DPARI_GX_DIRECTIONS);
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (field->location[d] || field->mirror_low[d] || field->mirror_high[d]) {
            return dpari_wrong(why,
                               "grid: field.direction is set, but the field has faces or a mirror "
                               "in dim %d; set location 0 and DPAR_GRID_MIRROR_OFF",
                               d);
        }
        for (k = 0; k < field->components; k++) {
            const int8_t step = field->direction[k * grid->head.dims + d];
            if (step < -1 || step > 1) {
                return dpari_wrong(why,
                                   "grid: the direction of component %d in dim %d is %d; it must "
                                   "be -1, 0 or 1",
                                   k, d, (int32_t)step);
            }
        }
    }
    return DPAR_OK;
}

/* Returns the mirror of an array at an end of a dim: NONE, FACE or CELL. */
static DPARI_COLD int32_t dpari_gx_mirror_of(int32_t of_field, int32_t of_grid)
{
    if (of_field == DPAR_GRID_MIRROR_OFF) {
        return DPAR_GRID_MIRROR_NONE;
    }
    return of_field != DPAR_GRID_MIRROR_NONE ? of_field : of_grid;
}

/* Sets halo, components, mirrors and strides of an array's shape, with the defaults that the field
 * leaves open. */
static DPARI_COLD void dpari_gx_describe_points(const dpari_gx *grid, const dpar_grid_field *field,
                                                dpari_gx_shape *shape)
{
    int64_t step;
    int32_t d, k, dense = 1;
    shape->field = *field;
    shape->field.components = field->components > 0 ? field->components : 1;
    shape->halo = grid->halo;
    step = field->component_stride != 0 ? 1 : shape->field.components;
    shape->field.component_stride = field->component_stride != 0 ? field->component_stride : 1;
    for (d = 0; d < grid->head.dims; d++) {
        dense = dense && field->stride[d] == 0;
        shape->field.mirror_low[d] =
            dpari_gx_mirror_of(field->mirror_low[d], grid->desc.mirror_low[d]);
        shape->field.mirror_high[d] =
            dpari_gx_mirror_of(field->mirror_high[d], grid->desc.mirror_high[d]);
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

/* Computes shape->low, shape->high and shape->origin. Returns 0, or 1 + the dim whose stride
 * reaches further than 2^57 bytes, where dim number `dims` means the components. */
static DPARI_COLD int32_t dpari_gx_span(const dpari_gx *grid, dpari_gx_shape *shape)
{
    const int64_t most = INT64_C(1) << 57;
    const int64_t bytes = dpar_type_bytes(shape->type);
    int64_t low = 0, high = 1, origin = 0; /* in elements */
    int32_t d;
    for (d = 0; d <= grid->head.dims; d++) {
        const int comps = d == grid->head.dims;
        const int64_t step = comps ? shape->field.component_stride : shape->field.stride[d];
        const int64_t below = comps ? 0 : grid->low[d];
        const int64_t points = /* 0 for a rank without cells */
            comps ? shape->field.components : dpari_gx_points(grid, &shape->field, d);
        const int64_t above = dpari_most(points - 1 - below, 0);
        int64_t a, b, size;
        if (step < -most || step > most) {
            return d + 1;
        }
        size = dpari_size(step);
        if (!dpari_mul(size, below, &a) || !dpari_mul(size, above, &b) || a > most || b > most) {
            return d + 1;
        }
        low -= step < 0 ? b : a;
        high += step < 0 ? a : b;
        origin += step < 0 ? -a : a;
        if (high - low > most / bytes) {
            return d + 1;
        }
    }
    shape->origin = grid->desc.array_start ? origin * bytes : 0;
    shape->low = low * bytes + shape->origin;
    shape->high = high * bytes + shape->origin;
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
    if (!grid->desc.periodic[d] && !field->mirror_low[d] && !grid->desc.exchange_walls) {
        points -= dpari_most(grid->low[d] - first, 0);
    }
    if (!grid->desc.periodic[d] && !field->mirror_high[d] && !grid->desc.exchange_walls) {
        points -= dpari_most(grid->high[d] - after, 0);
    }
    return points;
}

/* Checks that no two points have the same address. */
static DPARI_COLD dpar_status dpari_gx_check_apart(const dpari_gx *grid,
                                                   const dpari_gx_shape *shape, int32_t rank,
                                                   dpar_why *why)
{
    const int32_t dims = grid->head.dims;
    int64_t points[DPAR_MAX_DIMS + 1], stride[DPAR_MAX_DIMS + 1];
    int32_t d;
    if (dpari_gx_is_empty(grid)) {
        return DPAR_OK;
    }
    for (d = 0; d < dims; d++) {
        points[d] = dpari_gx_used_points(grid, &shape->field, d);
        stride[d] = shape->field.stride[d];
    }
    points[dims] = shape->field.components;
    stride[dims] = shape->field.component_stride;
    d = dpari_hx_overlapping_dim(stride, points, dims + 1);
    if (d < 0) {
        return DPAR_OK;
    }
    if (d == dims) {
        return dpari_wrong(
            why,
            "grid: rank %d has %ld components, %ld elements apart: several elements have "
            "the same address",
            rank, points[d], dpari_size(stride[d]));
    }
    return dpari_wrong(why,
                       "grid: rank %d has %ld points in dim %d, %ld elements apart: several points "
                       "have the same address",
                       rank, points[d], d, dpari_size(stride[d]));
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_shape(const dpari_gx *grid, int32_t type,
                                                          const dpar_grid_field *field,
                                                          int32_t rank, dpari_gx_shape *shape,
                                                          dpar_why *why)
{
    dpar_grid_field cells;
    dpar_status status;
    int32_t d;
    dpari_zero(&cells, sizeof cells);
    dpari_zero(shape, sizeof *shape);
    field = field ? field : &cells;
    status = dpari_gx_check_field(grid, type, field, why);
    if (status != DPAR_OK) {
        return status;
    }
    shape->type = type;
    dpari_gx_describe_points(grid, field, shape);
    status = dpari_gx_check_mirrors(grid, shape->field.mirror_low, shape->field.mirror_high, why);
    if (status == DPAR_OK) {
        status = dpari_gx_check_directions(grid, &shape->field, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    for (d = 0; field->direction && d < grid->head.dims; d++) {
        int32_t k;
        for (k = 0; k < shape->field.components; k++) {
            shape->direction[k][d] = field->direction[k * grid->head.dims + d];
        }
        shape->field.direction = &shape->direction[0][0];
    }
    d = dpari_gx_span(grid, shape) - 1;
    if (d < 0) {
        return dpari_gx_check_apart(grid, shape, rank, why);
    }
    if (d == grid->head.dims) {
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: an array of rank %d reaches beyond 2^57 bytes: %d components, "
                         "%ld elements apart",
                         rank, shape->field.components, shape->field.component_stride);
    }
    return dpari_say(DPAR_E_RANGE, why,
                     "grid: an array of rank %d reaches beyond 2^57 bytes: %ld points in dim "
                     "%d, %ld elements apart",
                     rank, dpari_gx_points(grid, &shape->field, d), d, shape->field.stride[d]);
}

/* True if two shapes have elements of the same type at the same points, with the same strides. They
 * may differ in the number of components. */
static DPARI_COLD int dpari_gx_same_points(const dpari_gx *grid, const dpari_gx_shape *a,
                                           const dpari_gx_shape *b)
{
    int32_t d;
    if (a->type != b->type || a->field.component_stride != b->field.component_stride) {
        return 0;
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (a->field.location[d] != b->field.location[d] ||
            a->field.stride[d] != b->field.stride[d]) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL DPARI_COLD int dpari_gx_alike(const dpari_gx *grid, const dpari_gx_shape *a,
                                             const dpari_gx_shape *b)
{
    int32_t d, k;
    if (a->field.components != b->field.components || a->reach != b->reach) {
        return 0;
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (a->field.odd[d] != b->field.odd[d] ||
            a->field.mirror_low[d] != b->field.mirror_low[d] ||
            a->field.mirror_high[d] != b->field.mirror_high[d]) {
            return 0;
        }
    }
    if (!a->field.direction != !b->field.direction) {
        return 0;
    }
    for (k = 0; a->field.direction && k < a->field.components; k++) {
        for (d = 0; d < grid->head.dims; d++) {
            if (a->direction[k][d] != b->direction[k][d]) {
                return 0;
            }
        }
    }
    return dpari_gx_same_points(grid, a, b);
}

DPARI_INTERNAL DPARI_COLD int dpari_gx_part_of(const dpari_gx *grid, const dpari_gx_shape *a,
                                               const dpari_gx_shape *b, int64_t apart)
{
    const int64_t step = a->field.component_stride * dpar_type_bytes(a->type);
    const int64_t most = dpari_most(a->field.components, b->field.components);
    return apart % step == 0 && apart / step < most && apart / step > -most &&
           dpari_gx_same_points(grid, a, b);
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_gx_owned(const dpari_gx_shape *shape, int32_t rank,
                                                 dpar_box *own)
{
    if (!dpar_halo_owned(&shape->halo, rank, own)) {
        return 0;
    }
    return dpar_box_volume(own) * shape->field.components;
}
