/* SPDX-License-Identifier: MIT-0 */
/* Computes the source of a halo point. Each rule is written down as halo.h defines it. */
#include "proof_image.h"

#include "../base/base_private.h"
#include "../index/index_private.h"
#include "../index/reach.h"

DPARI_INTERNAL DPARI_COLD void dpari_prove_block_of(const dpar_halo *halo, int32_t rank,
                                                    dpari_prove_block *block)
{
    dpar_box box, own;
    int owns;
    int32_t d;
    dpari_zero(block, sizeof *block);
    block->has = dpar_halo_box(halo, rank, &box);
    if (!block->has) {
        return;
    }
    owns = dpar_halo_owned(halo, rank, &own);
    for (d = 0; d < halo->grid.dims; d++) {
        block->box[d][0] = box.lo[d];
        block->box[d][1] = box.hi[d];
        block->own[d][0] = owns ? own.lo[d] : box.lo[d];
        block->own[d][1] = owns ? own.hi[d] : box.lo[d];
    }
}

/* ---- where the rules of a dim change --------------------------------------------------------- */

/* True if dim d is the y or x of a cubed sphere. */
static int dpari_prove_on_face(const dpar_halo *halo, int32_t d)
{
    return halo->cube && d >= halo->grid.dims - 2;
}

/* True if the last row of dim d is on a fold, so that its points are held twice. */
static int dpari_prove_has_seam(const dpar_halo *halo, int32_t d)
{
    return halo->folds && halo->on_row && d == halo->fold;
}

/* Sets [at[0], at[1]) to the points of a face of a cubed sphere that are not beyond its edges by
 * their position. The points on an edge that another face owns are not beyond it. */
static void dpari_prove_face_points(const dpar_halo *halo, int32_t d, int64_t *at)
{
    at[0] = halo->points[d] == DPAR_HALO_AT_HIGH_FACES ? -1 : 0;
    at[1] = halo->grid.extent[d] + (halo->points[d] == DPAR_HALO_AT_LOW_FACES);
}

/* Sets at[] to the points of dim d at which a rule may begin. Returns their number. */
enum { DPARI_PROVE_STARTS = 7 };
static int32_t dpari_prove_starts(const dpar_halo *halo, const dpari_prove_block *block, int32_t d,
                                  int64_t *at)
{
    int32_t n = 0;
    at[n++] = block->own[d][0];
    at[n++] = block->own[d][1];
    if ((halo->periodic >> d & 1u) != 0) {
        return n;
    }
    at[n++] = 0;
    at[n++] = dpar_halo_points(halo, d);
    if (dpari_prove_has_seam(halo, d)) {
        at[n++] = dpar_halo_points(halo, d) - 1;
    }
    if (dpari_prove_on_face(halo, d)) {
        dpari_prove_face_points(halo, d, at + n);
        n += 2;
    }
    return n;
}

DPARI_INTERNAL int32_t dpari_prove_rule(const dpar_halo *halo, const dpari_prove_block *block,
                                        int32_t d, int64_t i)
{
    int64_t at[DPARI_PROVE_STARTS];
    int32_t n = dpari_prove_starts(halo, block, d, at), rule = 0;
    while (n > 0) {
        rule += i >= at[--n];
    }
    return rule;
}

/* ---- images ---------------------------------------------------------------------------------- */

/* Returns in how many dims a halo point may be outside the own points. */
static int32_t dpari_prove_outside(const dpar_halo *halo)
{
    int32_t d;
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->window[d].kernel != 0) {
            return halo->grid.dims;
        }
    }
    return dpari_stencil_axes(halo->shape, halo->grid.dims);
}

/* Returns the direction of axis a (0 is x, 1 is y, 2 is outwards) of a face of the cube: 1, 2, 3
 * for X, Y, Z, and negative numbers for the opposite ones. This is the table in halo.h. */
static int32_t dpari_prove_axis(int32_t face, int32_t a)
{
    static const int8_t axes[3][6] = {
        {2, -1, -1, -3, -3, 2}, {3, 3, -2, -2, 1, 1}, {1, 2, 3, -1, -2, -3}};
    return axes[a][face];
}

/* Returns which heading on a face has a direction: 0 to 3 for x, y, -x and -y. */
static int32_t dpari_prove_heading(int32_t face, int32_t direction)
{
    int32_t heading;
    for (heading = 0; heading < 3; heading++) {
        const int32_t axis = dpari_prove_axis(face, heading % 2);
        if (direction == (heading < 2 ? axis : -axis)) {
            break;
        }
    }
    return heading;
}

/* Returns the face beyond the edge of a face in this heading. A path over the edge turns inwards on
 * the cube. *turn receives the quarter turns of vectors that come from there. */
static int32_t dpari_prove_next_face(int32_t face, int32_t heading, int32_t *turn)
{
    const int32_t axis = dpari_prove_axis(face, heading % 2);
    int32_t next = 0;
    while (dpari_prove_axis(next, 2) != (heading < 2 ? axis : -axis)) {
        next++;
    }
    *turn = (4 + heading - dpari_prove_heading(next, -dpari_prove_axis(face, 2))) % 4;
    return next;
}

/* Moves a position over an edge of a face, in dim k of at[] (0 is y, 1 is x), in half cells. half:
 * the position of points in their cells. */
static DPARI_COLD void dpari_prove_over_edge(int64_t n, int32_t k, int64_t *face, int64_t *at,
                                             int32_t *half, int32_t *turn)
{
    const int up = at[k] > n;
    int32_t quarter = 0;
    *face = dpari_prove_next_face((int32_t)*face, 1 - k + (up ? 0 : 2), &quarter);
    *turn = (*turn + quarter) % 4;
    at[k] += up ? -2 * n : 2 * n;
    if (quarter != 0) {
        const int64_t across = at[k];
        const int32_t was = half[k];
        at[k] = 2 * n - at[1 - k];
        at[1 - k] = across;
        half[k] = half[1 - k];
        half[1 - k] = was;
    }
}

/* Sets q to the point of a cubed sphere at the position of p. Returns 0 if p is beyond two edges,
 * where three faces meet. A point on an edge may need two steps, because the face beyond the edge
 * may not own it either. */
static DPARI_COLD int dpari_prove_on_cube(const dpar_halo *halo, const int64_t *p, int64_t *q,
                                          int32_t *turn)
{
    const int32_t y = halo->grid.dims - 2;
    const int64_t n = halo->grid.extent[y];
    int64_t at[2];
    int32_t half[2], k, hops;
    for (k = 0; k < 2; k++) {
        half[k] = 1;
        if (halo->points[y + k] != DPAR_HALO_AT_CELLS) {
            half[k] = halo->points[y + k] == DPAR_HALO_AT_LOW_FACES ? 0 : 2;
        }
        at[k] = 2 * p[y + k] + half[k];
    }
    for (hops = 0; hops < 3; hops++) {
        int beyond[2], ends[2];
        for (k = 0; k < 2; k++) {
            beyond[k] = at[k] < 0 || at[k] > 2 * n;
            ends[k] = at[k] < half[k] || at[k] - half[k] >= 2 * n;
        }
        if (beyond[0] && beyond[1]) {
            return 0;
        }
        if (!ends[0] && !ends[1]) {
            break;
        }
        k = ends[1];
        if (beyond[0] || beyond[1]) {
            k = beyond[1];
        }
        dpari_prove_over_edge(n, k, &q[0], at, half, turn);
    }
    q[y] = (at[0] - half[0]) / 2;
    q[y + 1] = (at[1] - half[1]) / 2;
    return 1;
}

/* Returns the row of which row i of the folded dim is an image. *beyond receives 1 if it is beyond
 * a fold, 2 if it is beyond a pole, otherwise 0. */
static int64_t dpari_prove_row(const dpar_halo *halo, int64_t i, int32_t *beyond)
{
    const int64_t n = dpar_halo_points(halo, halo->fold);
    *beyond = 0;
    if (i >= n && halo->folds) {
        *beyond = 1;
        return 2 * (n - 1) + 1 - halo->on_row - i;
    }
    if (i >= n && (halo->poles & DPAR_HALO_POLE_HIGH) != 0) {
        *beyond = 2;
        return 2 * (n - 1) + 1 - ((halo->pole_rows & DPAR_HALO_POLE_HIGH) != 0) - i;
    }
    if (i < 0 && (halo->poles & DPAR_HALO_POLE_LOW) != 0) {
        *beyond = 2;
        return ((halo->pole_rows & DPAR_HALO_POLE_LOW) != 0) - 1 - i;
    }
    return i;
}

DPARI_INTERNAL int dpari_prove_image(const dpar_halo *halo, const dpari_prove_block *block,
                                     const int64_t *p, int64_t *q, int32_t *turn)
{
    const int bends = halo->folds || halo->poles != 0;
    int32_t d, outside = 0, beyond = 0;
    int seam = 0;
    *turn = 0;
    for (d = 0; d < halo->grid.dims; d++) {
        const int64_t n = dpar_halo_points(halo, d);
        outside += p[d] < block->own[d][0] || p[d] >= block->own[d][1];
        q[d] = p[d];
        if ((halo->periodic >> d & 1u) != 0) {
            q[d] -= dpari_floor_div(p[d], n) * n;
        } else if (bends && d == halo->fold) {
            q[d] = dpari_prove_row(halo, p[d], &beyond);
        }
        if ((q[d] < 0 || q[d] >= n) && !dpari_prove_on_face(halo, d)) {
            return 0;
        }
        seam |= dpari_prove_has_seam(halo, d) && p[d] == n - 1;
    }
    if (outside > dpari_prove_outside(halo)) {
        return 0;
    }
    if (beyond != 0 || seam) {
        const int64_t columns = dpar_halo_points(halo, halo->mirror), column = q[halo->mirror];
        int64_t to = columns - 1 + halo->shift - column;
        if (beyond == 2) {
            to = column + columns / 2;
        }
        to -= dpari_floor_div(to, columns) * columns;
        if (beyond != 0 || to < column) { /* on the fold, the earlier column of a pair counts */
            q[halo->mirror] = to;
            *turn = 2;
            return 1;
        }
    }
    return outside > 0 && (!halo->cube || dpari_prove_on_cube(halo, p, q, turn));
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Returns the cell whose owner owns point i of a dim. */
static int64_t dpari_prove_cell(const dpar_halo *halo, int32_t d, int64_t i)
{
    if (dpar_halo_points(halo, d) == halo->grid.extent[d]) {
        return i;
    }
    return halo->points[d] == DPAR_HALO_AT_LOW_FACES ? dpari_least(i, halo->grid.extent[d] - 1)
                                                     : dpari_most(i - 1, 0);
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_prove_owner(const dpar_halo *halo, const int64_t *q,
                                                    int32_t *coord)
{
    int32_t d;
    for (d = 0; d < halo->grid.dims; d++) {
        (void)dpar_layout_locate(&halo->grid, d, dpari_prove_cell(halo, d, q[d]), coord, NULL,
                                 NULL);
    }
    return dpar_mesh_rank(&halo->grid.mesh, coord);
}

/* True if axis i cuts dim d. */
static DPARI_COLD int dpari_prove_cuts(const dpar_halo *halo, int32_t i, int32_t d)
{
    return halo->grid.axis[i].kind == DPAR_PLACEMENT_SHARD && halo->grid.axis[i].dim == d;
}

/* Advances coord[] to the next part of dim d. Returns 0 after the last one. */
static DPARI_COLD int dpari_prove_next_part(const dpar_halo *halo, int32_t d, int32_t *coord)
{
    int32_t i;
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (!dpari_prove_cuts(halo, i, d)) {
            continue;
        }
        if (++coord[i] < halo->grid.mesh.axis[i].size) {
            return 1;
        }
        coord[i] = 0;
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_cut(const dpar_halo *halo, int32_t d,
                                                      dpar_why *why)
{
    int32_t coord[DPAR_MAX_AXES] = {0};
    int64_t own[2], box[2], i, parts = 0;
    for (i = 0; i < dpar_halo_points(halo, d); i = own[1]) {
        if (!dpar_layout_locate(&halo->grid, d, dpari_prove_cell(halo, d, i), coord, NULL, NULL) ||
            !dpari_halo_range(halo, coord, d, own, box) || own[0] != i || own[1] <= i) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "blocks: point %ld of dim %d does not begin the block of its owner", i,
                             d);
        }
        parts++;
    }
    dpari_zero(coord, sizeof coord);
    do { /* no part of the dim owns points besides those that were visited */
        parts -= dpari_halo_range(halo, coord, d, own, box) && own[1] > own[0];
    } while (dpari_prove_next_part(halo, d, coord));
    if (parts != 0) {
        return dpari_say(DPAR_E_MISMATCH, why, "blocks: the parts of dim %d overlap", d);
    }
    return DPAR_OK;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* A range of points of a dim to which one rule applies. */
typedef struct dpari_prove_piece {
    int64_t lo, hi;
    int32_t outside; /* 1 if it is outside the own points */
    int32_t beyond;  /* 1 if it is beyond an edge of a cube's face */
    int32_t seam;    /* 1 if it is the row on a fold */
} dpari_prove_piece;
enum { DPARI_PROVE_PIECES = DPARI_PROVE_STARTS + 1 };

/* True if point i of a dim may receive a value, as far as this dim decides. */
static int dpari_prove_may_receive(const dpar_halo *halo, int32_t d, int64_t i)
{
    int32_t beyond = 0;
    if ((halo->periodic >> d & 1u) != 0 || dpari_prove_on_face(halo, d)) {
        return 1;
    }
    if ((halo->folds || halo->poles != 0) && d == halo->fold) {
        i = dpari_prove_row(halo, i, &beyond);
    }
    return i >= 0 && i < dpar_halo_points(halo, d);
}

/* Divides the local array along dim d into pieces, without those that receive nothing. Returns
 * their number. */
static int32_t dpari_prove_pieces(const dpar_halo *halo, const dpari_prove_block *block, int32_t d,
                                  dpari_prove_piece *piece)
{
    int64_t at[DPARI_PROVE_STARTS], face[2] = {INT64_MIN, INT64_MAX}, lo = block->box[d][0], hi;
    const int32_t starts = dpari_prove_starts(halo, block, d, at);
    int32_t n = 0, k;
    if (dpari_prove_on_face(halo, d)) {
        dpari_prove_face_points(halo, d, face);
    }
    for (; lo < block->box[d][1]; lo = hi) {
        hi = block->box[d][1];
        for (k = 0; k < starts; k++) {
            hi = at[k] > lo ? dpari_least(hi, at[k]) : hi;
        }
        if (!dpari_prove_may_receive(halo, d, lo)) {
            continue;
        }
        piece[n].lo = lo;
        piece[n].hi = hi;
        piece[n].outside = lo < block->own[d][0] || lo >= block->own[d][1];
        piece[n].beyond = lo < face[0] || lo >= face[1];
        piece[n].seam = dpari_prove_has_seam(halo, d) && lo == dpar_halo_points(halo, d) - 1;
        n++;
    }
    return n;
}

/* Counts the own columns whose point on the fold is held by an earlier column, too. */
static DPARI_COLD int64_t dpari_prove_later_columns(const dpar_halo *halo,
                                                    const dpari_prove_piece *piece)
{
    const int64_t columns = dpar_halo_points(halo, halo->mirror);
    int64_t i, n = 0;
    for (i = piece->lo; i < piece->hi; i++) {
        const int64_t to = columns - 1 + halo->shift - i;
        n += to - dpari_floor_div(to, columns) * columns < i;
    }
    return n;
}

DPARI_INTERNAL int64_t dpari_prove_due(const dpar_halo *halo, const dpari_prove_block *block)
{
    dpari_prove_piece piece[DPAR_MAX_DIMS][DPARI_PROVE_PIECES];
    int32_t pieces[DPAR_MAX_DIMS], at[DPAR_MAX_DIMS] = {0}, d;
    const int32_t dims = halo->grid.dims, most = dpari_prove_outside(halo);
    int64_t due = 0;
    for (d = 0; d < dims; d++) {
        pieces[d] = dpari_prove_pieces(halo, block, d, piece[d]);
        if (pieces[d] == 0) {
            return 0;
        }
    }
    do {
        int64_t points = 1;
        int32_t outside = 0, beyond = 0, seam = 0;
        for (d = 0; d < dims; d++) {
            const dpari_prove_piece *one = &piece[d][at[d]];
            outside += one->outside;
            beyond += one->beyond;
            seam |= one->seam;
        }
        for (d = 0; d < dims && outside <= most && beyond < 2 && (outside > 0 || seam); d++) {
            const dpari_prove_piece *one = &piece[d][at[d]];
            int64_t count = one->hi - one->lo;
            if (outside == 0 && d == halo->mirror) {
                count = dpari_prove_later_columns(halo, one);
            }
            if (!dpari_mul(points, count, &points) || points > INT64_MAX - due) {
                return -1;
            }
        }
        due += d == dims ? points : 0;
        for (d = dims - 1; d >= 0 && ++at[d] == pieces[d]; d--) {
            at[d] = 0;
        }
    } while (d >= 0);
    return due;
}
