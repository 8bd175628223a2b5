/* SPDX-License-Identifier: MIT-0 */
/* Layouts. The cuts of a dim form a chain: each mesh axis that shards it splits what the axes
 * before it left, by a dpar_split. A local index becomes a global one from the innermost cut
 * outwards, and a global index is located from the outermost cut inwards. All other functions apply
 * this to each dim. */
#include "layout.h"

#include "index_private.h"

DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    p.kind = DPAR_PLACEMENT_SHARD;
    p.dim = dim;
    p.rule = rule;
    p.block = block;
    return p;
}

DPAR_API dpar_placement dpar_shard(int32_t dim)
{
    return dpar_shard_by(dim, DPAR_SPLIT_CHUNK, 0);
}

DPAR_API dpar_placement dpar_replicate(void)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    return p;
}

DPAR_API dpar_placement dpar_partial(int32_t op)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    p.kind = DPAR_PLACEMENT_PARTIAL;
    p.op = op;
    return p;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Makes the split of `count` elements by an axis. It cannot fail, because dpar_layout_init checked
 * it. */
static void dpari_axis_split(const dpar_layout *layout, int32_t axis, int64_t count,
                             dpar_split *split)
{
    const dpar_placement *placement = &layout->axis[axis];
    dpari_zero(split, sizeof(*split));
    split->rule = placement->rule;
    split->parts = layout->mesh.axis[axis].size;
    split->block = placement->rule == DPAR_SPLIT_CYCLIC ? 1 : placement->block;
    split->source = placement->rule == DPAR_SPLIT_BLOCK_CYCLIC ? placement->source : 0;
    split->cuts = placement->cuts;
    dpari_split_resize(split, count);
}

/* Returns the next axis that cuts a dim, from position k of the order on, or -1. */
static int32_t dpari_next_cut(const dpar_layout *layout, int32_t dim, int32_t k)
{
    for (; k < layout->mesh.axes; k++) {
        const dpar_placement *placement = &layout->axis[layout->order[k]];
        if (placement->kind == DPAR_PLACEMENT_SHARD && placement->dim == dim) {
            return k;
        }
    }
    return -1;
}

static dpar_status dpari_check_shard(const dpar_placement *placement, int32_t axis, int32_t size,
                                     const int64_t *extent, int32_t dims, dpar_why *why)
{
    dpar_split s;
    dpar_status st;
    int32_t dim = placement->dim + (placement->dim < 0 ? dims : 0);
    if (placement->rule != DPAR_SPLIT_RAGGED) {
        if (placement->rule == DPAR_SPLIT_BLOCK_CYCLIC &&
            (placement->source < 0 || placement->source >= size)) {
            return dpari_wrong(why, "source is %d: must be one of the %d parts", placement->source,
                               size);
        }
        return dpar_split_init(&s, placement->rule, extent[dim], size, placement->block, why);
    }
    if (placement->cuts == NULL) {
        return dpari_wrong(why, "axis %d: RAGGED needs cuts", axis);
    }
    st = dpar_split_init_ragged(&s, size, placement->cuts, why);
    if (st == DPAR_OK && s.count != extent[dim]) {
        return dpari_say(DPAR_E_DIVIDE, why, "the cuts end at %ld, but dim %d has %ld elements",
                         s.count, dim, extent[dim]);
    }
    return st;
}

static dpar_status dpari_check_axis(const dpar_placement *placement, int32_t axis, int32_t dims,
                                    dpar_why *why)
{
    if (placement->kind == DPAR_PLACEMENT_SHARD &&
        (placement->dim < -dims || placement->dim >= dims)) {
        return dpari_wrong(why, "axis %d shards dim %d, but the array has %d dims", axis,
                           placement->dim, dims);
    }
    if (placement->kind == DPAR_PLACEMENT_PARTIAL &&
        (placement->op < DPAR_SUM || placement->op >= DPAR_OP_COUNT)) {
        return dpari_wrong(why, "axis %d: op %d is not a reduction", axis, placement->op);
    }
    if (placement->kind < DPAR_PLACEMENT_REPLICATE || placement->kind > DPAR_PLACEMENT_PARTIAL) {
        return dpari_wrong(why, "axis %d: placement kind %d does not exist", axis, placement->kind);
    }
    return DPAR_OK;
}

/* Sorts the axes into the order in which they cut, and checks that RAGGED is the first cut of its
 * dim. */
static dpar_status dpari_check_order(const dpar_placement *placement, int32_t axes, int32_t dims,
                                     int8_t *order, dpar_why *why)
{
    uint32_t cut = 0;
    int32_t i, k;
    for (i = 0; i < axes; i++) {
        for (k = i; k > 0 && placement[order[k - 1]].order > placement[i].order; k--) {
            order[k] = order[k - 1];
        }
        order[k] = (int8_t)i;
    }
    for (k = 0; k < axes; k++) {
        const dpar_placement *q = &placement[order[k]];
        int32_t dim = q->dim + (q->dim < 0 ? dims : 0);
        if (q->kind != DPAR_PLACEMENT_SHARD) {
            continue;
        }
        if (q->rule == DPAR_SPLIT_RAGGED && (cut >> dim & 1u)) {
            return dpari_wrong(why, "axis %d: RAGGED must be the first cut of dim %d", order[k],
                               dim);
        }
        cut |= (uint32_t)1 << dim;
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_layout_init(dpar_layout *layout, const dpar_mesh *mesh,
                                                 int32_t dims, const int64_t *extent,
                                                 const dpar_placement *placement, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int8_t order[DPAR_MAX_AXES] = {0};
    int32_t i;
    if (mesh->size < 1 || mesh->axes < 0 || mesh->axes > DPAR_MAX_AXES) {
        return dpari_wrong(why, "the mesh has %d axes and %d ranks: use dpar_mesh_init", mesh->axes,
                           mesh->size);
    }
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims must be 0 to %d, not %d", (int32_t)DPAR_MAX_DIMS, dims);
    }
    for (i = 0; i < dims; i++) {
        if (extent[i] < 0 || extent[i] > INT64_C(1) << 62) {
            return dpari_say(extent[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "dim %d has %ld elements: must be 0 to 2^62", i, extent[i]);
        }
    }
    for (i = 0; i < mesh->axes && st == DPAR_OK; i++) {
        st = dpari_check_axis(&placement[i], i, dims, why);
    }
    if (st == DPAR_OK) {
        st = dpari_check_order(placement, mesh->axes, dims, order, why);
    }
    for (i = 0; i < mesh->axes && st == DPAR_OK; i++) {
        if (placement[i].kind == DPAR_PLACEMENT_SHARD) {
            st = dpari_check_shard(&placement[i], i, mesh->axis[i].size, extent, dims, why);
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    layout->mesh = *mesh;
    layout->dims = dims;
    for (i = 0; i < DPAR_MAX_DIMS; i++) {
        layout->extent[i] = i < dims ? extent[i] : 0;
    }
    for (i = 0; i < mesh->axes && i < DPAR_MAX_AXES; i++) { /* gcc -O3 warns without it */
        layout->axis[i] = placement[i];
        if (placement[i].kind == DPAR_PLACEMENT_SHARD && placement[i].dim < 0) {
            layout->axis[i].dim += dims;
        }
        layout->order[i] = order[i];
    }
    for (; i < DPAR_MAX_AXES; i++) {
        dpari_zero(&layout->axis[i], sizeof(layout->axis[i]));
        layout->order[i] = 0;
    }
    return DPAR_OK;
}

/* ---- one dim --------------------------------------------------------------------------------- */

/* The cuts of one dim as one rank sees them: cut k splits the part that cut k - 1 gave it. */
typedef struct dpari_nest {
    int32_t cuts;
    int64_t size[DPAR_MAX_AXES + 1]; /* number of indices before cut k; size[cuts] is what the rank
                                        owns */
    int8_t axis[DPAR_MAX_AXES];
    dpar_split split; /* scratch for one cut: the last one after dpari_nest_of */
} dpari_nest;

/* Lists the cuts of a dim. `coord` has the rank's coordinates; NULL means that the rank is not in
 * the mesh and owns nothing. */
static void dpari_nest_of(const dpar_layout *layout, const int32_t *coord, int32_t dim,
                          dpari_nest *e)
{
    int32_t k = dpari_next_cut(layout, dim, 0);
    e->cuts = 0;
    e->size[0] = coord != NULL ? layout->extent[dim] : 0;
    for (; k >= 0 && coord != NULL; k = dpari_next_cut(layout, dim, k + 1)) {
        int32_t axis = layout->order[k];
        dpari_axis_split(layout, axis, e->size[e->cuts], &e->split);
        e->axis[e->cuts] = (int8_t)axis;
        e->size[e->cuts + 1] = dpar_split_part_count(&e->split, coord[axis]);
        e->cuts++;
    }
}

/* Converts a local index to a global one, from the innermost cut outwards. Returns -1 if the rank
 * does not have it. *run receives how many indices are consecutive from there on. */
static int64_t dpari_nest_global(const dpar_layout *layout, const int32_t *coord, dpari_nest *e,
                                 int64_t local, int64_t *run)
{
    int64_t least, here = 0;
    int32_t k;
    if (local < 0 || local >= e->size[e->cuts]) {
        return -1;
    }
    least = e->size[e->cuts] - local;
    for (k = e->cuts - 1; k >= 0; k--) {
        if (e->cuts > 1) { /* the split of the only cut was made by dpari_nest_of */
            dpari_axis_split(layout, e->axis[k], e->size[k], &e->split);
        }
        local = dpar_split_global(&e->split, coord[e->axis[k]], local, &here);
        least = dpari_least(least, here);
    }
    *run = least;
    return local;
}

static const int32_t *dpari_coords(const dpar_layout *layout, int32_t rank, int32_t *coord)
{
    return dpar_mesh_coords(&layout->mesh, rank, coord) ? coord : NULL;
}

/* Not inlined, so that its frame and that of the search for coordinates are not on the stack at the
 * same time. */
DPARI_STATIC_NOINLINE int64_t dpari_global_at(const dpar_layout *layout, const int32_t *coord,
                                              int32_t dim, int64_t local, int64_t *run)
{
    int64_t here, i;
    dpari_nest e;
    dpari_nest_of(layout, coord, dim, &e);
    i = dpari_nest_global(layout, coord, &e, local, &here);
    if (i >= 0 && run != NULL) {
        *run = here;
    }
    return i;
}

DPAR_API int64_t dpar_layout_global(const dpar_layout *layout, int32_t rank, int32_t dim,
                                    int64_t local, int64_t *run)
{
    int32_t coord[DPAR_MAX_AXES];
    if (dim < 0 || dim >= layout->dims) {
        return -1;
    }
    return dpari_global_at(layout, dpari_coords(layout, rank, coord), dim, local, run);
}

DPARI_API int dpari_layout_span(const dpar_layout *layout, const int32_t *coord, int32_t dim,
                                int64_t *lo, int64_t *hi)
{
    int64_t run;
    dpari_nest e;
    if (dim < 0 || dim >= layout->dims) {
        return 0;
    }
    dpari_nest_of(layout, coord, dim, &e);
    if (e.size[e.cuts] == 0) {
        return 0;
    }
    *lo = dpari_nest_global(layout, coord, &e, 0, &run);
    *hi = dpari_nest_global(layout, coord, &e, e.size[e.cuts] - 1, &run) + 1;
    return 1;
}

/* Counts the indices before i that the ranks at coord[] own, from the outermost cut inwards. */
DPARI_STATIC_NOINLINE int64_t dpari_before_at(const dpar_layout *layout, const int32_t *coord,
                                              int32_t dim, int64_t i)
{
    int64_t size = layout->extent[dim];
    int32_t k;
    dpar_split s;
    i = dpari_most(0, dpari_least(i, size));
    for (k = dpari_next_cut(layout, dim, 0); k >= 0; k = dpari_next_cut(layout, dim, k + 1)) {
        dpari_axis_split(layout, layout->order[k], size, &s);
        i = dpari_split_before(&s, coord[layout->order[k]], i);
        size = dpar_split_part_count(&s, coord[layout->order[k]]);
    }
    return i;
}

DPARI_INTERNAL int64_t dpari_layout_before(const dpar_layout *layout, int32_t rank, int32_t dim,
                                           int64_t i)
{
    int32_t coord[DPAR_MAX_AXES];
    if (dim < 0 || dim >= layout->dims || dpari_coords(layout, rank, coord) == NULL) {
        return 0;
    }
    return dpari_before_at(layout, coord, dim, i);
}

DPAR_API int dpar_layout_locate(const dpar_layout *layout, int32_t dim, int64_t i, int32_t *coord,
                                int64_t *local, int64_t *run)
{
    int64_t least, here, count;
    int32_t k;
    dpar_split s;
    if (dim < 0 || dim >= layout->dims || i < 0 || i >= layout->extent[dim]) {
        return 0;
    }
    count = layout->extent[dim];
    least = count - i;
    for (k = dpari_next_cut(layout, dim, 0); k >= 0; k = dpari_next_cut(layout, dim, k + 1)) {
        int32_t axis = layout->order[k];
        dpari_axis_split(layout, axis, count, &s);
        coord[axis] = dpar_split_locate(&s, i, &i, &here);
        least = dpari_least(least, here);
        count = dpar_split_part_count(&s, coord[axis]);
    }
    if (local != NULL) {
        *local = i;
    }
    if (run != NULL) {
        *run = least;
    }
    return 1;
}

/* ---- all dims -------------------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE void dpari_local_at(const dpar_layout *layout, const int32_t *coord,
                                          int32_t d, int64_t *shape, int64_t *offset)
{
    int64_t run, first;
    dpari_nest e;
    dpari_nest_of(layout, coord, d, &e);
    first = dpari_nest_global(layout, coord, &e, 0, &run);
    if (shape != NULL) {
        shape[d] = e.size[e.cuts];
    }
    if (offset != NULL) {
        offset[d] = first < 0 ? layout->extent[d] : first;
    }
}

DPAR_API void dpar_layout_local(const dpar_layout *layout, int32_t rank, int64_t *shape,
                                int64_t *offset)
{
    int32_t coord[DPAR_MAX_AXES], d;
    const int32_t *at = dpari_coords(layout, rank, coord);
    for (d = 0; d < layout->dims; d++) {
        dpari_local_at(layout, at, d, shape, offset);
    }
}

static int64_t dpari_volume(int32_t dims, const int64_t *shape)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (shape[d] == 0) {
            return 0;
        }
    }
    for (d = 0; d < dims; d++) {
        if (!dpari_mul(n, shape[d], &n)) {
            return -1;
        }
    }
    return n;
}

DPAR_API int64_t dpar_layout_count(const dpar_layout *layout, int32_t rank)
{
    int64_t shape[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES];
    if (dpari_coords(layout, rank, coord) == NULL) {
        return 0; /* also for an array without dims */
    }
    dpar_layout_local(layout, rank, shape, NULL);
    return dpari_volume(layout->dims, shape);
}

DPAR_API void dpar_layout_strides(const dpar_layout *layout, int32_t rank, const int64_t *whole,
                                  int64_t *stride)
{
    int64_t shape[DPAR_MAX_DIMS];
    int32_t d, k;
    dpar_layout_local(layout, rank, shape, NULL);
    for (d = 0; d < layout->dims; d++) {
        stride[d] = 1;
        for (k = 0; k < layout->dims; k++) {
            int faster = whole == NULL || whole[k] == whole[d] ? k > d : whole[k] < whole[d];
            if (faster && !dpari_mul(stride[d], dpari_most(1, shape[k]), &stride[d])) {
                stride[d] = INT64_MAX;
            }
        }
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint32_t dpari_copy_axes(const dpar_layout *layout)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        set |= layout->axis[i].kind != DPAR_PLACEMENT_SHARD ? (uint32_t)1 << i : 0;
    }
    return set;
}

DPARI_API int32_t dpari_layout_copies(const dpar_layout *layout)
{
    return dpar_mesh_group_size(&layout->mesh, dpari_copy_axes(layout));
}

DPAR_API int32_t dpar_layout_owner(const dpar_layout *layout, const int64_t *index, int32_t copy,
                                   int64_t *local)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t at[DPAR_MAX_DIMS], run;
    if (copy < 0 || copy >= dpari_layout_copies(layout)) {
        return -1;
    }
    dpari_zero(coord, sizeof(coord));
    for (d = 0; d < layout->dims; d++) {
        if (!dpar_layout_locate(layout, d, index[d], coord, &at[d], &run)) {
            return -1;
        }
    }
    for (d = 0; d < layout->dims && local != NULL; d++) {
        local[d] = at[d];
    }
    return dpar_mesh_group_member(&layout->mesh, dpari_copy_axes(layout),
                                  dpar_mesh_rank(&layout->mesh, coord), copy);
}

DPAR_API int dpar_layout_is_primary(const dpar_layout *layout, int32_t rank)
{
    return dpar_mesh_group_index(&layout->mesh, dpari_copy_axes(layout), rank) == 0;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

DPAR_API int dpar_layout_next(const dpar_layout *layout, int32_t rank, dpar_box_cursor *cursor,
                              dpar_box *box, int64_t *at)
{
    int32_t coord[DPAR_MAX_AXES], d;
    const int32_t *where = dpari_coords(layout, rank, coord);
    dpari_nest e;
    int64_t run;
    if (where == NULL || (cursor->begun && layout->dims == 0)) {
        return 0;
    }
    for (d = layout->dims - 1; d >= 0 && cursor->begun; d--) { /* the next run of the fastest dim */
        dpari_nest_of(layout, where, d, &e);
        (void)dpari_nest_global(layout, coord, &e, cursor->local[d], &run);
        cursor->local[d] += run;
        if (cursor->local[d] < e.size[e.cuts]) {
            break;
        }
        cursor->local[d] = 0;
        if (d == 0) {
            return 0;
        }
    }
    for (d = 0; d < layout->dims; d++) {
        dpari_nest_of(layout, where, d, &e);
        box->lo[d] = dpari_nest_global(layout, coord, &e, cursor->local[d], &run);
        if (box->lo[d] < 0) {
            return 0; /* an empty dim */
        }
        box->hi[d] = box->lo[d] + run;
        if (at != NULL) {
            at[d] = cursor->local[d];
        }
    }
    box->dims = layout->dims;
    cursor->begun = 1;
    return 1;
}

/* ---- comparing ------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_layout_cut_in(dpar_layout *layout, const int8_t *order)
{
    const int64_t axes =
        dpari_least(layout->mesh.axes, DPAR_MAX_AXES); /* compilers warn without it */
    int32_t k;
    for (k = 0; k < axes; k++) {
        layout->order[k] = order[k];
        layout->axis[order[k]].order = k;
    }
}

DPARI_INTERNAL int dpari_layout_same(const dpar_layout *a, const dpar_layout *b)
{
    int32_t i, d;
    if (a->dims != b->dims || !dpari_mesh_same(&a->mesh, &b->mesh)) {
        return 0;
    }
    for (i = 0; i < a->mesh.axes; i++) {
        const dpar_placement *x = &a->axis[i], *y = &b->axis[i];
        int shard = x->kind == DPAR_PLACEMENT_SHARD;
        if (x->kind != y->kind || (x->kind == DPAR_PLACEMENT_PARTIAL && x->op != y->op) ||
            (shard && (x->dim != y->dim || x->rule != y->rule || x->block != y->block ||
                       x->source != y->source || x->cuts != y->cuts))) {
            return 0;
        }
    }
    for (d = 0; d < a->dims; d++) {
        int32_t j = -1, k = -1;
        if (a->extent[d] != b->extent[d]) {
            return 0;
        }
        do { /* both layouts must cut the dim by the same axes, in the same order */
            j = dpari_next_cut(a, d, j + 1);
            k = dpari_next_cut(b, d, k + 1);
            if ((j < 0) != (k < 0) || (j >= 0 && a->order[j] != b->order[k])) {
                return 0;
            }
        } while (j >= 0);
    }
    return 1;
}
