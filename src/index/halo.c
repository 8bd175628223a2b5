/* SPDX-License-Identifier: MIT-0 */
/* Checks descriptions of halos and computes their boxes: which points a rank owns, holds, computes,
 * and can compute before an exchange. Each box is a product of ranges, one for each dim, so that
 * every dim is computed separately. The transfers are in reach.c. */
#include "halo.h"

#include "index_private.h"
#include "reach.h"

/* ---- checks ---------------------------------------------------------------------------------- */

/* The limit of extents and widths. The sum of a dim and both of its halos then fits into 64
 * bits. */
static const int64_t dpari_halo_limit = INT64_C(1) << 60;

static int dpari_halo_in_one_piece(const dpar_placement *placement)
{
    return placement->kind != DPAR_PLACEMENT_SHARD || placement->rule == DPAR_SPLIT_CHUNK ||
           placement->rule == DPAR_SPLIT_EVEN || placement->rule == DPAR_SPLIT_FLOOR ||
           placement->rule == DPAR_SPLIT_RAGGED;
}

static DPARI_COLD dpar_status dpari_halo_check_dim(const dpar_halo *halo, int32_t d, dpar_why *why)
{
    int32_t i;
    if (halo->low[d] < 0 || halo->high[d] < 0 || halo->low[d] > dpari_halo_limit ||
        halo->high[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why,
                         "dim %d has halos of %ld and %ld: each must be 0 to 2^60", d, halo->low[d],
                         halo->high[d]);
    }
    if (halo->grid.extent[d] < 0 || halo->grid.extent[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why, "dim %d has %ld cells: must be 0 to 2^60", d,
                         halo->grid.extent[d]);
    }
    if ((halo->periodic >> d & 1u) != 0 && halo->grid.extent[d] > 0 &&
        dpari_most(halo->low[d], halo->high[d]) / 16 >= halo->grid.extent[d]) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "dim %d has halos of %ld and %ld: must be less than 16 times its %ld points", d,
            halo->low[d], halo->high[d], halo->grid.extent[d]);
    }
    if (halo->points[d] < DPAR_HALO_AT_CELLS || halo->points[d] > DPAR_HALO_AT_HIGH_FACES) {
        return dpari_wrong(why, "points[%d] is %d, which is no DPAR_HALO_AT_x", d, halo->points[d]);
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        const dpar_placement *placement = &halo->grid.axis[i];
        if (placement->dim == d && !dpari_halo_in_one_piece(placement)) {
            return dpari_wrong(why,
                               "axis %d cuts dim %d by rule %d: a halo needs contiguous blocks "
                               "(CHUNK, EVEN, FLOOR, RAGGED)",
                               i, d, placement->rule);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_halo_check_fold(const dpar_halo *halo, dpar_why *why)
{
    if (halo->fold < 0 || halo->mirror >= halo->grid.dims || halo->mirror <= halo->fold) {
        return dpari_wrong(why, "fold is %d, mirror is %d: need 0 <= fold < mirror < %d",
                           halo->fold, halo->mirror, halo->grid.dims);
    }
    if ((halo->periodic >> halo->mirror & 1u) == 0 || (halo->periodic >> halo->fold & 1u) != 0) {
        return dpari_wrong(why,
                           "fold=%d must not be periodic, mirror=%d must be a later, periodic dim",
                           halo->fold, halo->mirror);
    }
    if (halo->on_row < 0 || halo->on_row > 1 || halo->shift < -1 || halo->shift > 1) {
        return dpari_wrong(why, "on_row=%d must be 0 or 1, shift=%d must be -1 to 1", halo->on_row,
                           halo->shift);
    }
    if (halo->high[halo->fold] > dpar_halo_points(halo, halo->fold) - halo->on_row) {
        return dpari_say(DPAR_E_RANGE, why,
                         "a halo over the fold or a pole needs %ld rows, but there are %ld",
                         halo->high[halo->fold], dpar_halo_points(halo, halo->fold) - halo->on_row);
    }
    return DPAR_OK;
}

/* Returns the number of rows beyond a pole, without the row that is held twice. */
DPARI_INTERNAL int64_t dpari_halo_behind(const dpar_halo *halo, uint32_t pole)
{
    return dpar_halo_points(halo, halo->fold) - ((halo->pole_rows & pole) != 0) -
           (halo->folds && halo->on_row);
}

static DPARI_COLD dpar_status dpari_halo_check_pole(const dpar_halo *halo, uint32_t pole,
                                                    dpar_why *why)
{
    int64_t rows = dpari_halo_behind(halo, pole);
    int64_t width = pole == DPAR_HALO_POLE_LOW ? halo->low[halo->fold] : halo->high[halo->fold];
    if ((halo->poles & pole) != 0 && width > rows) {
        return dpari_say(DPAR_E_RANGE, why,
                         "a halo over the fold or a pole needs %ld rows, but there are %ld", width,
                         rows);
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_halo_check_poles(const dpar_halo *halo, dpar_why *why)
{
    dpar_status st;
    if (halo->poles > 3 || (halo->pole_rows & ~halo->poles) != 0) {
        return dpari_wrong(
            why, "poles=%ld must be 0 to 3, and pole_rows=%ld may only have bits of poles",
            (int64_t)halo->poles, (int64_t)halo->pole_rows);
    }
    if (halo->folds && (halo->poles & DPAR_HALO_POLE_HIGH) != 0) {
        return dpari_wrong(why, "dim %d has both a fold and a pole at its high end", halo->fold);
    }
    if (halo->fold < 0 || halo->mirror >= halo->grid.dims || halo->mirror <= halo->fold ||
        (halo->periodic >> halo->mirror & 1u) == 0 || (halo->periodic >> halo->fold & 1u) != 0) {
        return dpari_wrong(why,
                           "fold=%d must not be periodic, mirror=%d must be a later, periodic dim",
                           halo->fold, halo->mirror);
    }
    if (halo->grid.extent[halo->mirror] % 2 != 0) {
        return dpari_wrong(why, "%ld columns around a pole: the number must be even",
                           halo->grid.extent[halo->mirror]);
    }
    st = dpari_halo_check_pole(halo, DPAR_HALO_POLE_LOW, why);
    return st == DPAR_OK ? dpari_halo_check_pole(halo, DPAR_HALO_POLE_HIGH, why) : st;
}

static DPARI_COLD dpar_status dpari_halo_check_cube(const dpar_halo *halo, dpar_why *why)
{
    int32_t y = halo->grid.dims - 2, d;
    if (y < 1 || halo->grid.extent[0] != 6 || halo->grid.extent[y] != halo->grid.extent[y + 1]) {
        return dpari_wrong(
            why, "a cubed sphere has %d dims, but needs at least 3, with extents 6, ..., N, N",
            halo->grid.dims);
    }
    if (halo->folds || halo->poles != 0) {
        return dpari_wrong(why, "a cubed sphere cannot have folds or poles");
    }
    if (halo->points[0] != DPAR_HALO_AT_CELLS ||
        (halo->points[y] != DPAR_HALO_AT_CELLS && halo->points[y + 1] != DPAR_HALO_AT_CELLS)) {
        return dpari_wrong(why,
                           "a cubed sphere with points %d in dim 0, %d in y, %d in x: must be "
                           "AT_CELLS in dim 0 and in y or x (two corners have no owner)",
                           halo->points[0], halo->points[y], halo->points[y + 1]);
    }
    for (d = 0; d < halo->grid.dims; d += d == 0 ? y : 1) {
        int64_t most = d == 0 ? 0 : halo->grid.extent[d];
        if ((halo->periodic >> d & 1u) != 0 || halo->window[d].kernel != 0 || halo->low[d] > most ||
            halo->high[d] > most) {
            return dpari_wrong(
                why,
                "dim %d of a cubed sphere cannot be periodic, have windows or halos wider than %ld",
                d, most);
        }
    }
    return DPAR_OK;
}

/* Checks the partner field as far as a walk over `halo` reads it. */
static DPARI_COLD dpar_status dpari_halo_check_partner(const dpar_halo *halo, dpar_why *why)
{
    const dpar_halo *p = halo->partner;
    const int32_t y = halo->grid.dims - 2;
    int32_t d;
    if (!halo->cube || !p->cube || !dpari_layout_same(&halo->grid, &p->grid) ||
        halo->owner != p->owner || halo->periodic != p->periodic) {
        return dpari_wrong(
            why, "partner must be on the same cubed sphere: same grid, periodic and owner");
    }
    for (d = 0; d < halo->grid.dims; d++) {
        const int32_t other = d < y ? d : 2 * y + 1 - d;
        dpar_status st = dpari_halo_check_dim(p, d, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (halo->window[d].kernel != 0 || p->window[d].kernel != 0) {
            return dpari_wrong(why, "dim %d has a window, which excludes a partner", d);
        }
        if (halo->points[d] != p->points[other]) {
            return dpari_wrong(
                why,
                "points is %d in dim %d, but the partner's is %d in dim %d: they must be equal",
                halo->points[d], d, p->points[other], other);
        }
    }
    return DPAR_OK;
}

/* Checks the list of owners. The ranks of the mesh, 0, 1, ..., are then the numbers of blocks. */
static DPARI_COLD dpar_status dpari_halo_check_owner(const dpar_halo *halo, dpar_why *why)
{
    const dpar_mesh *mesh = &halo->grid.mesh;
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    if (mesh->first_rank != 0 || last != mesh->size - 1) {
        return dpari_wrong(why, "owner needs a mesh of ranks 0, 1, ..., not of %d to %ld",
                           mesh->first_rank, last);
    }
    for (i = 0; i < mesh->size; i++) {
        if (halo->owner[i] < -1) {
            return dpari_wrong(why, "owner[%d] is %d: must be a rank or -1", i, halo->owner[i]);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD int dpari_halo_windows(const dpar_halo *halo)
{
    int32_t d, any = 0;
    for (d = 0; d < halo->grid.dims; d++) {
        any |= halo->window[d].kernel != 0;
    }
    return any;
}

static DPARI_COLD dpar_status dpari_halo_check_outputs(const dpar_halo *halo, dpar_why *why)
{
    const dpar_layout *o = halo->outputs, *g = &halo->grid;
    int32_t i;
    if (o->dims != g->dims || !dpari_mesh_same(&o->mesh, &g->mesh)) {
        return dpari_wrong(why,
                           "outputs has %d dims, grid has %d, or their meshes are not the same",
                           o->dims, g->dims);
    }
    for (i = 0; i < g->mesh.axes; i++) {
        const dpar_placement *a = &o->axis[i], *b = &g->axis[i];
        if (a->kind != b->kind || (a->kind == DPAR_PLACEMENT_SHARD && a->dim != b->dim) ||
            o->order[i] != g->order[i] || !dpari_halo_in_one_piece(a)) {
            return dpari_wrong(
                why, "axis %d must cut the same dim of outputs and grid, into contiguous blocks",
                i);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_halo_check_window(const dpar_halo *halo, int32_t d,
                                                      dpar_why *why)
{
    int64_t n = halo->grid.extent[d], m = 0;
    dpar_status st;
    if (halo->points[d] != DPAR_HALO_AT_CELLS) {
        return dpari_wrong(why, "dim %d has a window: points must be AT_CELLS", d);
    }
    if (halo->window[d].kind == DPAR_WINDOW_NEIGHBOURHOOD && (halo->periodic >> d & 1u) != 0) {
        return dpari_wrong(why, "a neighbourhood in periodic dim %d: use a convolution instead", d);
    }
    if (halo->outputs == NULL) {
        st = dpar_window_outputs(&halo->window[d], n, &m, why);
    } else {
        st = dpari_window_check(&halo->window[d], n, halo->outputs->extent[d], why);
    }
    if (st == DPAR_OK && halo->window[d].kind == DPAR_WINDOW_CONVOLUTION &&
        (halo->periodic >> d & 1u) != 0) {
        int64_t k = halo->window[d].kernel - 1, by = dpari_most(halo->window[d].dilation, 1);
        int64_t reach =
            dpari_most(k * by, dpari_most(halo->window[d].pad_low, halo->window[d].pad_high));
        if (reach / 16 >= n) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "dim %d: windows reach %ld points: must be less than 16 times its %ld points", d,
                reach, n);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_check(const dpar_halo *halo, dpar_why *why)
{
    int32_t d;
    dpar_status st = DPAR_OK;
    if (!halo) {
        return dpari_wrong(why, "the halo is NULL");
    }
    if (halo->grid.dims < 0 || halo->grid.dims > DPAR_MAX_DIMS || halo->grid.mesh.size < 1 ||
        halo->grid.mesh.axes < 0 || halo->grid.mesh.axes > DPAR_MAX_AXES) {
        return dpari_wrong(why, "grid has %d dims, %d ranks and %d axes: use dpar_layout_init",
                           halo->grid.dims, halo->grid.mesh.size, halo->grid.mesh.axes);
    }
    if (dpari_stencil_axes(halo->shape, 1) == 0) {
        return dpari_wrong(why, "shape is %d, which is no DPAR_STENCIL_x", halo->shape);
    }
    if (halo->periodic >> halo->grid.dims != 0) {
        return dpari_wrong(why, "periodic is %ld, but the grid has only %d dims",
                           (int64_t)halo->periodic, halo->grid.dims);
    }
    if (((halo->folds | halo->cube) & ~1) != 0) {
        return dpari_wrong(why, "folds is %d, cube is %d: each must be 0 or 1", halo->folds,
                           halo->cube);
    }
    for (d = 0; d < halo->grid.dims && st == DPAR_OK; d++) {
        st = dpari_halo_check_dim(halo, d, why);
    }
    if (st == DPAR_OK && halo->folds) {
        st = dpari_halo_check_fold(halo, why);
    }
    if (st == DPAR_OK && (halo->poles != 0 || halo->pole_rows != 0)) {
        st = dpari_halo_check_poles(halo, why);
    }
    if (st == DPAR_OK && halo->cube) {
        st = dpari_halo_check_cube(halo, why);
    }
    if (st == DPAR_OK && halo->partner != NULL) {
        st = dpari_halo_check_partner(halo, why);
    }
    if (st == DPAR_OK && halo->owner != NULL) {
        st = dpari_halo_check_owner(halo, why);
    }
    if (st == DPAR_OK && halo->outputs != NULL) {
        st = dpari_halo_check_outputs(halo, why);
    }
    for (d = 0; d < halo->grid.dims && st == DPAR_OK; d++) {
        if (halo->window[d].kernel != 0 && halo->grid.extent[d] != 0) {
            st = dpari_halo_check_window(halo, d, why);
        }
    }
    return st;
}

/* ---- points and their owners ----------------------------------------------------------------- */

/* True if there are other points beyond the ends of a dim. */
DPARI_INTERNAL int dpari_halo_closed(const dpar_halo *halo, int32_t d)
{
    return (halo->periodic >> d & 1u) != 0 || (halo->cube && d >= halo->grid.dims - 2);
}

/* Returns 1 if the dim has one more point than cells, otherwise 0. */
static int dpari_halo_more(const dpar_halo *halo, int32_t d)
{
    return halo->points[d] != DPAR_HALO_AT_CELLS && !dpari_halo_closed(halo, d);
}

DPAR_API int64_t dpar_halo_points(const dpar_halo *halo, int32_t dim)
{
    int64_t cells = halo->grid.extent[dim];
    return cells > 0 ? cells + dpari_halo_more(halo, dim) : 0;
}

/* Turns the cells [at[0], at[1]) into the points that they own. */
static DPARI_COLD void dpari_halo_of_cells(const dpar_halo *halo, int32_t d, int64_t *at)
{
    if (!dpari_halo_more(halo, d)) {
        return;
    }
    if (halo->points[d] == DPAR_HALO_AT_LOW_FACES) {
        at[1] += at[1] == halo->grid.extent[d];
    } else {
        at[0] += at[0] > 0;
        at[1] += 1;
    }
}

/* Finds the owner of point i. coord receives its coordinates on the axes that cut the dim, and
 * at[0], at[1] the range of points that it owns. */
DPARI_INTERNAL void dpari_halo_owner(const dpar_halo *halo, int32_t d, int64_t i, int32_t *coord,
                                     int64_t *at)
{
    int64_t local = 0, run = 0, cell = i;
    if (dpari_halo_more(halo, d)) {
        cell = halo->points[d] == DPAR_HALO_AT_LOW_FACES ? dpari_least(i, halo->grid.extent[d] - 1)
                                                         : dpari_most(i - 1, 0);
    }
    (void)dpar_layout_locate(&halo->grid, d, cell, coord, &local, &run);
    at[0] = cell - local;
    at[1] = cell + run;
    dpari_halo_of_cells(halo, d, at);
}

/* Returns the number of outputs of a dim. */
static int64_t dpari_halo_all(const dpar_halo *halo, int32_t d)
{
    int64_t all = 0;
    if (halo->outputs != NULL) {
        return halo->outputs->extent[d];
    }
    (void)dpar_window_outputs(&halo->window[d], halo->grid.extent[d], &all, NULL);
    return all;
}

/* Returns the layout whose blocks say which outputs a rank computes: that of the outputs, or that
 * of the inputs to which the outputs belong. It is not stored, because small targets have little
 * stack. */
static const dpar_layout *dpari_halo_computers(const dpar_halo *halo)
{
    return halo->outputs != NULL ? halo->outputs : &halo->grid;
}

/* Turns the block [y[0], y[1]) of that layout into its outputs. Returns 0 if there are none. */
static DPARI_COLD int dpari_halo_computes(const dpar_halo *halo, int32_t d, int64_t *y)
{
    if (halo->outputs == NULL) {
        dpari_window_owned(&halo->window[d], halo->grid.extent[d], dpari_halo_all(halo, d), y[0],
                           y[1], &y[0], &y[1]);
    }
    return y[1] > y[0] && halo->grid.extent[d] > 0;
}

/* Computes, in one dim of one rank, the points that it owns and the points in its array. If it owns
 * none, `own` is an empty range at the start of the array. Returns 1, or 0 if it has neither. */
DPARI_API int dpari_halo_range(const dpar_halo *halo, const int32_t *coord, int32_t d, int64_t *own,
                               int64_t *box)
{
    int has, reads;
    reads = halo->window[d].kernel != 0 &&
            dpari_layout_span(dpari_halo_computers(halo), coord, d, &box[0], &box[1]) &&
            dpari_halo_computes(halo, d, box) &&
            dpari_window_reads(&halo->window[d], halo->grid.extent[d], dpari_halo_all(halo, d),
                               box[0], box[1], &box[0], &box[1]);
    has = dpari_layout_span(&halo->grid, coord, d, &own[0], &own[1]);
    if (!has && !reads) {
        return 0;
    }
    if (has) {
        dpari_halo_of_cells(halo, d, own);
        box[0] = reads ? dpari_least(own[0], box[0]) : own[0];
        box[1] = reads ? dpari_most(own[1], box[1]) : own[1];
    }
    box[0] -= halo->low[d];
    box[1] += halo->high[d];
    if (!has) {
        own[0] = own[1] = box[0];
    }
    return 1;
}

/* Returns the block of a rank, or -1 if it has none. */
static int32_t dpari_halo_block(const dpar_halo *halo, int32_t rank)
{
    int32_t i;
    for (i = 0; halo->owner != NULL && i < halo->grid.mesh.size; i++) {
        if (halo->owner[i] == rank && rank >= 0) {
            return i;
        }
    }
    return halo->owner == NULL ? rank : -1;
}

/* Computes the coordinates of a rank's block. Returns 0 if it has none. */
DPARI_API int dpari_halo_coords(const dpar_halo *halo, int32_t rank, int32_t *coord)
{
    return dpar_mesh_coords(&halo->grid.mesh, dpari_halo_block(halo, rank), coord);
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* True if nothing is ever received from beyond the low (0) or high (1) end of a dim. */
static int dpari_halo_open(const dpar_halo *halo, int32_t d, int side)
{
    if (dpari_halo_closed(halo, d)) {
        return 0;
    }
    if (d == halo->fold && (halo->poles >> side & 1u) != 0) {
        return 0;
    }
    return !(halo->folds && d == halo->fold && side);
}

/* Computes the core of the own points [own[0], own[1]) in a dim, which excludes the points that
 * read what an exchange receives. */
static void dpari_halo_shrink(const dpar_halo *halo, int32_t d, const int64_t *own, int64_t *core)
{
    int64_t end = dpar_halo_points(halo, d);
    core[0] = own[0] + (own[0] > 0 || !dpari_halo_open(halo, d, 0) ? halo->low[d] : 0);
    core[1] = own[1] - (own[1] < end || !dpari_halo_open(halo, d, 1) ? halo->high[d] : 0);
    if (halo->folds && halo->fold == d && halo->on_row && own[1] == end) {
        core[1] = dpari_least(core[1], end - 1 - halo->high[d]); /* the row that is held twice is
                                                                    received too */
    }
    core[0] = dpari_least(core[0], own[1]);
    core[1] = dpari_most(core[1], core[0]);
}

/* Sets out[] to the points that a rank computes in a dim, and core[] to their core. Returns 1, or 0
 * if there are none. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_work(const dpar_halo *halo, const int32_t *coord,
                                                     int32_t d, int64_t *out, int64_t *core)
{
    int64_t own[2] = {0, 0}, n = halo->grid.extent[d];
    int has = dpari_layout_span(&halo->grid, coord, d, &own[0], &own[1]);
    if (halo->window[d].kernel == 0) {
        if (has) {
            dpari_halo_of_cells(halo, d, own);
            out[0] = own[0];
            out[1] = own[1];
            dpari_halo_shrink(halo, d, own, core);
        }
        return has;
    }
    if (!dpari_layout_span(dpari_halo_computers(halo), coord, d, &out[0], &out[1]) ||
        !dpari_halo_computes(halo, d, out)) {
        return 0;
    }
    core[0] = core[1] = out[0];
    if (has) { /* a rank without own points has no core */
        core[1] = out[1];
        own[0] = own[0] > 0 || !dpari_halo_open(halo, d, 0) ? own[0] : INT64_MIN;
        own[1] = own[1] < n || !dpari_halo_open(halo, d, 1) ? own[1] : INT64_MAX;
        dpari_window_whole(&halo->window[d], n, dpari_halo_all(halo, d), own[0], own[1], &core[0],
                           &core[1]);
    }
    return 1;
}

/* The two pairs of boxes, one inside the other: the own points in the local array, and the core in
 * the points that a rank computes. They are computed dim by dim, which needs little stack. */
enum { DPARI_ARRAY, DPARI_WORK };

static int dpari_halo_pair(const dpar_halo *halo, const int32_t *coord, int32_t d, int kind,
                           int64_t *inner, int64_t *outer)
{
    return kind == DPARI_ARRAY ? dpari_halo_range(halo, coord, d, inner, outer)
                               : dpari_halo_work(halo, coord, d, outer, inner);
}

/* Computes the inner or the outer box of a pair. Returns 0 if it is empty or does not exist. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_get(const dpar_halo *halo, int32_t rank, int kind,
                                                    int want_outer, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], i, dims = halo->grid.dims;
    int64_t inner[2], outer[2];
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    for (i = 0; i < 2 * dims; i++) { /* the first pass over the dims checks, the second one
                                        writes */
        const int64_t *from = want_outer ? outer : inner;
        int32_t d = i % dims;
        if (!dpari_halo_pair(halo, coord, d, kind, inner, outer) || from[1] <= from[0]) {
            return 0;
        }
        if (i >= dims) {
            box->lo[d] = from[0];
            box->hi[d] = from[1];
        }
    }
    box->dims = dims;
    return 1;
}

DPAR_API int dpar_halo_owned(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_ARRAY, 0, box);
}

DPAR_API int dpar_halo_box(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_ARRAY, 1, box);
}

DPAR_API int dpar_halo_outputs(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_WORK, 1, box);
}

DPAR_API int dpar_halo_interior(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_WORK, 0, box);
}

/* Finds slab n of the outer box without the inner one. Slabs are counted dim by dim, the one below
 * the inner box before the one above. Returns its dim, with *side 0 (below) or 1 (above), or -1 if
 * there are fewer slabs. */
static int32_t dpari_halo_nth_slab(const dpar_halo *halo, const int32_t *coord, int kind, int32_t n,
                                   int32_t *side)
{
    int64_t inner[2], outer[2];
    int32_t d, k, found = -1, around = 1;
    if (n < 0) {
        return -1;
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (!dpari_halo_pair(halo, coord, d, kind, inner, outer)) {
            return -1;
        }
        for (k = 0; k < 2 && found < 0 && around; k++) {
            if ((k ? outer[1] > inner[1] : inner[0] > outer[0]) && n-- == 0) {
                found = d;
                *side = k;
            }
        }
        around = around && inner[1] > inner[0]; /* if the inner range is empty, later dims have no
                                                   slabs */
    }
    return found;
}

/* Computes the box of slab n. In dims before the slab's dim it is as wide as the inner box; in
 * later dims it is as wide as the outer box, or for a star as the inner one. */
static DPARI_COLD int dpari_halo_slab_of(const dpar_halo *halo, int32_t rank, int kind, int star,
                                         int32_t n, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d, at, side = 0;
    int64_t inner[2], outer[2];
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    at = dpari_halo_nth_slab(halo, coord, kind, n, &side);
    if (at < 0) {
        return 0;
    }
    box->dims = halo->grid.dims;
    for (d = 0; d < box->dims; d++) {
        const int64_t *lo = &outer[0], *hi = &outer[1];
        (void)dpari_halo_pair(halo, coord, d, kind, inner, outer);
        if (d < at || (star && d > at)) {
            lo = &inner[0];
            hi = &inner[1];
        } else if (d == at && side) {
            lo = &inner[1];
        } else if (d == at) {
            hi = &inner[0];
        }
        box->lo[d] = *lo;
        box->hi[d] = *hi;
    }
    return 1;
}

DPAR_API int dpar_halo_boundary(const dpar_halo *halo, int32_t rank, int32_t n, dpar_box *box)
{
    return dpari_halo_slab_of(halo, rank, DPARI_WORK, 0, n, box);
}

DPARI_INTERNAL int32_t dpari_halo_outside(const dpar_halo *halo)
{
    return dpari_halo_windows(halo) ? halo->grid.dims
                                    : dpari_stencil_axes(halo->shape, halo->grid.dims);
}

DPARI_API int dpari_halo_star(const dpar_halo *halo)
{
    return halo->shape == DPAR_STENCIL_STAR && !dpari_halo_windows(halo);
}

DPAR_API int dpar_halo_slab(const dpar_halo *halo, int32_t rank, int32_t n, dpar_box *box)
{
    return dpari_halo_slab_of(halo, rank, DPARI_ARRAY, dpari_halo_star(halo), n, box);
}

/* Returns a + b c, or -1 if that exceeds 2^63 - 1 or an argument is -1. */
static int64_t dpari_halo_add(int64_t a, int64_t b, int64_t c)
{
    int64_t more;
    if (a < 0 || b < 0 || c < 0 || !dpari_mul(b, c, &more) || a > INT64_MAX - more) {
        return -1;
    }
    return a + more;
}

DPAR_API DPARI_COLD int64_t dpar_halo_slab_points(const dpar_halo *halo, int32_t rank)
{
    int32_t coord[DPAR_MAX_AXES], d, star = dpari_halo_star(halo);
    int64_t own[2], box[2];
    int64_t inside = 1, around = 0; /* own points and slab points of the dims so far */
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    for (d = 0; d < halo->grid.dims; d++) {
        int64_t n, wide;
        if (!dpari_halo_range(halo, coord, d, own, box)) {
            return 0;
        }
        n = own[1] - own[0];
        wide = box[1] - box[0];
        if (around != 0) {
            around = dpari_halo_add(0, around, star ? n : wide);
        }
        around = dpari_halo_add(around, inside, wide - n);
        inside = inside == 0 || n == 0 ? 0 : dpari_halo_add(0, inside, n);
    }
    return around;
}
