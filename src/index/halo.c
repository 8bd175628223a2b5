/* SPDX-License-Identifier: MIT-0 */
#include "halo.h"

#include "redistribute.h"

#include "../base/arith.h"

/* ---- judging --------------------------------------------------------------------------------- */

static const int64_t dpari_halo_limit = INT64_C(1) << 60;

static dpar_status dpari_halo_check_dim(const dpar_halo *h, int32_t d, dpar_why *why)
{
    int32_t i;
    if (h->low[d] < 0 || h->high[d] < 0 || h->low[d] > dpari_halo_limit ||
        h->high[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why, "dim # has halos of # and #: 0 to 2^60 are possible", d,
                         h->low[d], h->high[d], 0);
    }
    if (h->grid.extent[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why, "dim # has # cells: at most 2^60", d, h->grid.extent[d],
                         0, 0);
    }
    if ((h->periodic >> d & 1u) != 0 && h->grid.extent[d] > 0 &&
        dpari_most(h->low[d], h->high[d]) / 16 >= h->grid.extent[d]) {
        return dpari_say(DPAR_E_RANGE, why,
                         "dim # has halos of # and # around # points: 16 times round at most", d,
                         h->low[d], h->high[d], h->grid.extent[d]);
    }
    if (h->points[d] < DPAR_AT_CELLS || h->points[d] > DPAR_AT_HIGH_FACES) {
        return dpari_say(DPAR_E_ARG, why, "dim #: points # do not exist", d, h->points[d], 0, 0);
    }
    for (i = 0; i < h->grid.mesh.axes; i++) {
        const dpar_placement *p = &h->grid.axis[i];
        if (p->kind == DPAR_SHARD && p->dim == d && p->rule != DPAR_CHUNK && p->rule != DPAR_EVEN &&
            p->rule != DPAR_FLOOR && p->rule != DPAR_RAGGED) {
            return dpari_say(
                DPAR_E_ARG, why,
                "axis # cuts dim # by rule #: a halo needs blocks in one piece (CHUNK, "
                "EVEN, FLOOR, RAGGED)",
                i, d, p->rule, 0);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_halo_check_fold(const dpar_halo *h, dpar_why *why)
{
    if (h->fold < 0 || h->mirror >= h->grid.dims || h->mirror <= h->fold) {
        return dpari_say(DPAR_E_ARG, why, "dim # folds, dim # is mirrored: a later one of # dims",
                         h->fold, h->mirror, h->grid.dims, 0);
    }
    if ((h->periodic >> h->mirror & 1u) == 0 || (h->periodic >> h->fold & 1u) != 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "dim # is mirrored and must be periodic, dim # folds and must not be",
                         h->mirror, h->fold, 0, 0);
    }
    if (h->on_row < 0 || h->on_row > 1 || h->shift < -1 || h->shift > 1) {
        return dpari_say(DPAR_E_ARG, why, "on_row is 0 or 1, not #; shift -1 to 1, not #",
                         h->on_row, h->shift, 0, 0);
    }
    if (h->high[h->fold] > dpar_halo_points(h, h->fold) - h->on_row) {
        return dpari_say(DPAR_E_RANGE, why, "a halo of # over the fold, behind it there are # rows",
                         h->high[h->fold], dpar_halo_points(h, h->fold) - h->on_row, 0, 0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_halo_check(const dpar_halo *h, dpar_why *why)
{
    int32_t d;
    dpar_status st = DPAR_OK;
    if (h->shape != DPAR_STENCIL_STAR && h->shape != DPAR_STENCIL_BOX) {
        return dpari_say(DPAR_E_ARG, why, "shape #: there are stars and boxes", h->shape, 0, 0, 0);
    }
    if (h->periodic >> h->grid.dims != 0) {
        return dpari_say(DPAR_E_ARG, why, "periodic is #, the grid has # dims", h->periodic,
                         h->grid.dims, 0, 0);
    }
    for (d = 0; d < h->grid.dims && st == DPAR_OK; d++) {
        st = dpari_halo_check_dim(h, d, why);
    }
    return st == DPAR_OK && h->folds ? dpari_halo_check_fold(h, why) : st;
}

/* ---- points and their owners ------------------------------------------------------------------
 */

/* One more point than cells? */
static int dpari_halo_more(const dpar_halo *h, int32_t d)
{
    return h->points[d] != DPAR_AT_CELLS && (h->periodic >> d & 1u) == 0;
}

DPAR_API int64_t dpar_halo_points(const dpar_halo *h, int32_t dim)
{
    int64_t cells = h->grid.extent[dim];
    return cells > 0 ? cells + dpari_halo_more(h, dim) : 0;
}

/* Cells [at[0], at[1]) own which points? */
static void dpari_halo_of_cells(const dpar_halo *h, int32_t d, int64_t *at)
{
    if (!dpari_halo_more(h, d)) {
        return;
    }
    if (h->points[d] == DPAR_AT_LOW_FACES) {
        at[1] += at[1] == h->grid.extent[d];
    } else {
        at[0] += at[0] > 0;
        at[1] += 1;
    }
}

/* The owner of point i: the coordinates of the axes that cut the dim, and what it owns. */
static void dpari_halo_owner(const dpar_halo *h, int32_t d, int64_t i, int32_t *coord, int64_t *at)
{
    int64_t local, run, cell = i;
    if (dpari_halo_more(h, d)) {
        cell = h->points[d] == DPAR_AT_LOW_FACES ? dpari_least(i, h->grid.extent[d] - 1)
                                                 : dpari_most(i - 1, 0);
    }
    (void)dpar_layout_find(&h->grid, d, cell, coord, &local, &run);
    at[0] = cell - local;
    at[1] = cell + run;
    dpari_halo_of_cells(h, d, at);
}

static int dpari_halo_own(const dpar_halo *h, int32_t rank, int32_t *coord, int64_t (*own)[2])
{
    int32_t d;
    if (!dpar_mesh_coords(&h->grid.mesh, rank, coord)) {
        return 0;
    }
    for (d = 0; d < h->grid.dims; d++) {
        if (!dpar_layout_span(&h->grid, coord, d, &own[d][0], &own[d][1])) {
            return 0;
        }
        dpari_halo_of_cells(h, d, own[d]);
    }
    return 1;
}

/* ---- boxes ------------------------------------------------------------------------------------
 */

DPAR_API int dpar_halo_owned(const dpar_halo *h, int32_t rank, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t own[DPAR_MAX_DIMS][2];
    if (!dpari_halo_own(h, rank, coord, own)) {
        return 0;
    }
    box->dims = h->grid.dims;
    for (d = 0; d < box->dims; d++) {
        box->lo[d] = own[d][0];
        box->hi[d] = own[d][1];
    }
    return 1;
}

DPAR_API int dpar_halo_box(const dpar_halo *h, int32_t rank, dpar_box *box)
{
    int32_t d;
    if (!dpar_halo_owned(h, rank, box)) {
        return 0;
    }
    for (d = 0; d < box->dims; d++) {
        box->lo[d] -= h->low[d];
        box->hi[d] += h->high[d];
    }
    return 1;
}

/* The owned points [own[0], own[1]) of a dim without the sides where an exchange brings something.
 */
static void dpari_halo_shrink(const dpar_halo *h, int32_t d, const int64_t *own, int64_t *core)
{
    int64_t end = dpar_halo_points(h, d);
    int wraps = (int)(h->periodic >> d & 1u), folds = h->folds && h->fold == d;
    core[0] = own[0] + (wraps || own[0] > 0 ? h->low[d] : 0);
    core[1] = own[1] - (wraps || folds || own[1] < end ? h->high[d] : 0);
    if (folds && h->on_row && own[1] == end) { /* the row that is there twice arrives too */
        core[1] = dpari_least(core[1], end - 1 - h->high[d]);
    }
    core[0] = dpari_least(core[0], own[1]);
    core[1] = dpari_most(core[1], core[0]);
}

DPAR_API int dpar_halo_core(const dpar_halo *h, int32_t rank, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t own[DPAR_MAX_DIMS][2], core[DPAR_MAX_DIMS][2];
    if (!dpari_halo_own(h, rank, coord, own)) {
        return 0;
    }
    for (d = 0; d < h->grid.dims; d++) {
        dpari_halo_shrink(h, d, own[d], core[d]);
        if (core[d][0] == core[d][1]) {
            return 0;
        }
    }
    box->dims = h->grid.dims;
    for (d = 0; d < box->dims; d++) {
        box->lo[d] = core[d][0];
        box->hi[d] = core[d][1];
    }
    return 1;
}

/* Slabs below and above the core, dim by dim: earlier dims cut to the core, later ones whole. */
DPAR_API int dpar_halo_rim(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d, k, side;
    int64_t rest[DPAR_MAX_DIMS][2], core[2];
    if (!dpari_halo_own(h, rank, coord, rest)) {
        return 0;
    }
    for (d = 0; d < h->grid.dims; d++) {
        dpari_halo_shrink(h, d, rest[d], core);
        for (side = 0; side < 2; side++) {
            int64_t lo = side ? core[1] : rest[d][0], hi = side ? rest[d][1] : core[0];
            if (hi <= lo || n < 0 || n-- > 0) {
                continue;
            }
            box->dims = h->grid.dims;
            for (k = 0; k < box->dims; k++) {
                box->lo[k] = k == d ? lo : rest[k][0];
                box->hi[k] = k == d ? hi : rest[k][1];
            }
            return 1;
        }
        rest[d][0] = core[0];
        rest[d][1] = core[1];
        if (core[0] == core[1]) {
            return 0;
        }
    }
    return 0;
}

DPAR_API int dpar_halo_slab(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box)
{
    dpar_box own, held;
    int32_t d, side, star = h->shape == DPAR_STENCIL_STAR;
    if (!dpar_halo_owned(h, rank, &own) || !dpar_halo_box(h, rank, &held)) {
        return 0;
    }
    for (d = 0; d < own.dims; d++) {
        for (side = 0; side < 2; side++) {
            int32_t k;
            int64_t lo = side ? own.hi[d] : held.lo[d], hi = side ? held.hi[d] : own.lo[d];
            if (hi <= lo || n < 0 || n-- > 0) {
                continue;
            }
            box->dims = own.dims;
            for (k = 0; k < own.dims; k++) {
                int whole = k > d && !star;
                box->lo[k] = k == d ? lo : whole ? held.lo[k] : own.lo[k];
                box->hi[k] = k == d ? hi : whole ? held.hi[k] : own.hi[k];
            }
            return 1;
        }
    }
    return 0;
}

DPAR_API int64_t dpar_halo_compact(const dpar_halo *h, int32_t rank)
{
    dpar_box slab;
    int64_t sum = 0;
    int32_t n;
    for (n = 0; dpar_halo_slab(h, rank, n, &slab); n++) {
        int64_t more = dpar_box_volume(&slab);
        if (more < 0 || sum > INT64_MAX - more) {
            return -1;
        }
        sum += more;
    }
    return sum;
}

/* ---- one dim of the walk ----------------------------------------------------------------------
 */

/* A receiver's points are passed twice: first what arrives as it is, then what comes over the fold.
 * In a dim they fall into segments, each with one owner, the same on both sides of the receiver's
 * own bounds, and without a wrap inside. */

enum { DPARI_PLAIN, DPARI_FOLDED };

/* The row that the walk is at: beyond the fold, on it, or neither. */
static int dpari_halo_beyond(const dpar_halo_walk *w)
{
    const dpar_halo *h = w->h;
    return w->x[h->fold] >= dpar_halo_points(h, h->fold);
}

static int dpari_halo_on_seam(const dpar_halo_walk *w)
{
    const dpar_halo *h = w->h;
    return h->folds && h->on_row && w->x[h->fold] == dpar_halo_points(h, h->fold) - 1;
}

/* The columns [at[0], at[1]) of the row on the fold that are images: of each pair the later one. */
static void dpari_halo_second_half(const dpar_halo *h, int64_t *at)
{
    int64_t columns = dpar_halo_points(h, h->mirror);
    at[0] = h->shift > 0 ? columns / 2 + 1 : (columns - 1 + h->shift) / 2 + 1;
    at[1] = h->shift > 0 ? columns : columns + h->shift;
}

/* Point i of a ring, and how many follow it before the end. */
static int64_t dpari_halo_ring(int64_t i, int64_t points)
{
    return i - dpari_floor_div(i, points) * points;
}

/* n points go against the order from `first` down, all in what `first`'s owner has. */
static int64_t dpari_halo_backwards(dpar_halo_walk *w, int32_t d, int64_t first, int64_t n,
                                    int32_t *coord)
{
    int64_t at[2];
    dpari_halo_owner(w->h, d, first, coord, at);
    n = dpari_least(n, first - at[0] + 1);
    w->g[d] = first - n + 1;
    w->source[d] = at[0];
    w->reversed |= (uint32_t)1 << d;
    return n;
}

static int64_t dpari_halo_forwards(dpar_halo_walk *w, int32_t d, int64_t first, int64_t n,
                                   int32_t *coord)
{
    int64_t at[2];
    dpari_halo_owner(w->h, d, first, coord, at);
    w->g[d] = first;
    w->source[d] = at[0];
    return dpari_least(n, at[1] - first);
}

/* A column of a row beyond the fold or on it. 0: not in this pass. */
static int dpari_halo_column(dpar_halo_walk *w, int64_t n, int32_t *coord)
{
    const dpar_halo *h = w->h;
    int32_t d = h->mirror;
    int64_t columns = dpar_halo_points(h, d), i = dpari_halo_ring(w->x[d], columns), half[2], to;
    int image = 1;
    n = dpari_least(n, columns - i);
    if (!dpari_halo_beyond(w)) {
        dpari_halo_second_half(h, half);
        image = i >= half[0] && i < half[1];
        n = image ? dpari_least(n, half[1] - i) : i < half[0] ? dpari_least(n, half[0] - i) : n;
    }
    w->n[d] = n;
    if (image != (w->pass == DPARI_FOLDED)) {
        return 0;
    }
    if (!image) {
        w->n[d] = dpari_halo_forwards(w, d, i, n, coord);
        return 1;
    }
    to = dpari_halo_ring(columns - 1 + h->shift - i, columns);
    w->n[d] = dpari_halo_backwards(w, d, to, n, coord);
    return 1;
}

/* The segment at x[d]: sets n, g, source, bits and the source's coordinates. 0: nothing arrives. */
static int dpari_halo_segment(dpar_halo_walk *w, int32_t d, int32_t *coord)
{
    const dpar_halo *h = w->h;
    int64_t x = w->x[d], points = dpar_halo_points(h, d), lo = w->at[d][0], hi = w->at[d][1], n;
    int inside = x >= lo && x < hi;
    n = (x < lo ? lo : inside ? hi : hi + h->high[d]) - x;
    w->inside &= ~((uint32_t)1 << d);
    w->inside |= (uint32_t)inside << d;
    w->reversed &= ~((uint32_t)1 << d);
    if (h->folds && d == h->fold && x >= points) {
        w->n[d] = n;
        if (w->pass == DPARI_FOLDED) {
            w->n[d] = dpari_halo_backwards(w, d, 2 * (points - 1) + 1 - h->on_row - x, n, coord);
        }
        return w->pass == DPARI_FOLDED;
    }
    if (h->folds && d == h->fold && x + n >= points) {
        n = x == points - 1 ? 1 : points - 1 - x; /* the last row stands alone */
    }
    if (h->folds && d == h->mirror && (dpari_halo_beyond(w) || dpari_halo_on_seam(w))) {
        return dpari_halo_column(w, n, coord);
    }
    w->n[d] = n;
    if (h->folds && d == h->fold && w->pass == DPARI_FOLDED && !dpari_halo_on_seam(w)) {
        return 0; /* rows that have no image over the fold */
    }
    if (h->periodic >> d & 1u) {
        x = dpari_halo_ring(x, points);
    } else if (x < 0 || x >= points) {
        w->n[d] = x < 0 ? dpari_least(n, -x) : n;
        return 0;
    }
    w->n[d] = dpari_halo_forwards(w, d, x, n, coord);
    return 1;
}

/* ---- the walk over one receiver ---------------------------------------------------------------
 */

/* A star has nothing outside in two dims: 1 when an earlier dim is outside. */
static int dpari_halo_only_inside(const dpar_halo_walk *w, int32_t d)
{
    uint32_t earlier = ((uint32_t)1 << d) - 1;
    return w->h->shape == DPAR_STENCIL_STAR && (~w->inside & earlier) != 0;
}

/* Where a dim's segments begin. */
static void dpari_halo_enter(dpar_halo_walk *w, int32_t d)
{
    w->x[d] = w->at[d][0] - (dpari_halo_only_inside(w, d) ? 0 : w->h->low[d]);
}

/* From a segment that another rank has to where the sender's own points come next; wide halos pass
 * many. Folded grids go segment by segment. */
static int64_t dpari_halo_skip(const dpar_halo_walk *w, int32_t d)
{
    int64_t ahead = w->own[d][0] - w->g[d];
    if (w->h->folds) {
        return w->n[d];
    }
    if (ahead < 0) {
        ahead += w->h->periodic >> d & 1u ? dpar_halo_points(w->h, d) : 2 * dpari_halo_limit;
    }
    return ahead;
}

/* From x[d] on, the next segment that counts: any, or for a sender one whose source it is. */
static int dpari_halo_seek(dpar_halo_walk *w, int32_t d)
{
    int64_t end = w->at[d][1] + (dpari_halo_only_inside(w, d) ? 0 : w->h->high[d]);
    int32_t other[DPAR_MAX_AXES];
    while (w->x[d] < end) {
        if (!dpari_halo_segment(w, d, w->sends ? other : w->peer)) {
            w->x[d] += w->n[d];
        } else if (!w->sends || w->source[d] == w->own[d][0]) {
            return 1;
        } else {
            w->x[d] += dpari_halo_skip(w, d);
        }
    }
    return 0;
}

/* Does the box of segments travel? Its own cells stay, a star has no edges. */
static int dpari_halo_travels(const dpar_halo_walk *w)
{
    int32_t d, outside = 0;
    for (d = 0; d < w->h->grid.dims; d++) {
        outside += (int32_t)(~w->inside >> d & 1u);
    }
    if (outside == 0) {
        return w->pass == DPARI_FOLDED;
    }
    return outside == 1 || w->h->shape == DPAR_STENCIL_BOX;
}

/* The next box of segments of this receiver; `fresh` begins with its first. */
static int dpari_halo_box_next(dpar_halo_walk *w, int fresh)
{
    int32_t dims = w->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_enter(w, 0);
    } else {
        w->x[d] += w->n[d];
    }
    while (d >= 0) {
        if (!dpari_halo_seek(w, d)) {
            if (--d >= 0) {
                w->x[d] += w->n[d];
            }
        } else if (d < dims - 1) {
            dpari_halo_enter(w, ++d);
        } else if (dpari_halo_travels(w)) {
            return 1;
        } else {
            w->x[d] += w->n[d];
        }
    }
    return 0;
}

/* ---- the receivers of a sender ----------------------------------------------------------------
 */

/* Where the receivers begin that may take something in dim d: the first point of a block, on a line
 * that goes on beyond the ends where it wraps; from[d][1] is where they end. */
static void dpari_halo_reach(dpar_halo_walk *w, int32_t d)
{
    const dpar_halo *h = w->h;
    int64_t points = dpar_halo_points(h, d), lo = w->own[d][0], hi = w->own[d][1], at[2];
    int32_t coord[DPAR_MAX_AXES];
    if (w->pass == DPARI_FOLDED && d == h->fold) { /* rows whose halo comes back down to mine */
        lo = 2 * (points - 1) + 1 - h->on_row - (hi - 1) - h->high[d];
        lo = dpari_most(0, dpari_least(lo, points - 1));
        hi = points;
    } else {
        if (w->pass == DPARI_FOLDED && d == h->mirror) {
            int64_t first = points - 1 + h->shift - (hi - 1);
            hi = first + (hi - lo);
            lo = first;
        }
        lo -= h->high[d];
        hi += h->low[d];
        if ((h->periodic >> d & 1u) == 0) {
            lo = dpari_most(lo, 0);
            hi = dpari_least(hi, points);
        }
    }
    dpari_halo_owner(h, d, dpari_halo_ring(lo, points), coord, at);
    lo -= dpari_halo_ring(lo, points) - at[0];
    w->from[d][0] = lo;
    w->from[d][1] = dpari_least(hi, lo + points); /* once round at most */
}

/* The receiver at from[d][0]. */
static void dpari_halo_receiver(dpar_halo_walk *w, int32_t d)
{
    int64_t points = dpar_halo_points(w->h, d);
    dpari_halo_owner(w->h, d, dpari_halo_ring(w->from[d][0], points), w->peer, w->at[d]);
}

/* The first of all receivers, or the next one. */
static int dpari_halo_receivers(dpar_halo_walk *w, int fresh)
{
    int32_t d;
    for (d = w->h->grid.dims - 1; d >= 0; d--) {
        if (!fresh) {
            w->from[d][0] += w->at[d][1] - w->at[d][0];
            if (w->from[d][0] < w->from[d][1]) {
                dpari_halo_receiver(w, d);
                return 1;
            }
        }
        dpari_halo_reach(w, d);
        dpari_halo_receiver(w, d);
    }
    return fresh;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

DPAR_API dpar_status dpar_halo_begin(dpar_halo_walk *w, const dpar_halo *h, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why)
{
    dpar_status st = dpar_halo_check(h, why);
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    if ((direction != DPAR_RECEIVES && direction != DPAR_SENDS) ||
        (mode != DPAR_HALO_FORWARD && mode != DPAR_HALO_ADJOINT)) {
        return dpari_say(DPAR_E_ARG, why, "direction #, mode #: each is 0 or 1", direction, mode, 0,
                         0);
    }
    dpari_zero(w, sizeof(*w));
    w->h = h;
    w->rank = rank;
    w->adjoint = mode;
    w->sends = (direction == DPAR_SENDS) != (mode == DPAR_HALO_ADJOINT);
    if (!dpari_halo_own(h, rank, w->coord, w->own)) {
        w->pass = DPARI_FOLDED + 1; /* has nothing */
        return DPAR_OK;
    }
    for (i = 0; i < h->grid.dims; i++) {
        w->at[i][0] = w->own[i][0];
        w->at[i][1] = w->own[i][1];
    }
    for (i = 0; i < h->grid.mesh.axes; i++) { /* replicas exchange among themselves */
        w->peer[i] = w->coord[i];
    }
    return DPAR_OK;
}

static void dpari_halo_fill(const dpar_halo_walk *w, dpar_transfer *t)
{
    const dpar_halo *h = w->h;
    int32_t d;
    dpari_zero(t, sizeof(*t));
    t->peer = dpar_mesh_rank(&h->grid.mesh, w->peer);
    t->dims = h->grid.dims;
    t->op = w->adjoint ? DPAR_SUM : DPAR_COPY;
    t->flip = w->reversed;
    for (d = 0; d < t->dims; d++) {
        int64_t there = w->x[d] - (w->at[d][0] - h->low[d]);
        int64_t here = w->g[d] - (w->source[d] - h->low[d]);
        t->extent[d] = w->n[d];
        t->mine[d] = w->sends ? here : there;
        t->theirs[d] = w->sends ? there : here;
        t->global[d] = w->sends ? w->g[d] : w->x[d];
    }
}

DPAR_API int dpar_halo_next(dpar_halo_walk *w, dpar_transfer *t)
{
    while (w->pass <= (w->h->folds ? DPARI_FOLDED : DPARI_PLAIN)) {
        int fresh = w->state < 2;
        if (w->sends && w->state == 0) {
            (void)dpari_halo_receivers(w, 1);
        }
        w->state = 2;
        if (dpari_halo_box_next(w, fresh)) {
            dpari_halo_fill(w, t);
            return 1;
        }
        w->state = 1; /* another receiver, or the next pass */
        if (!w->sends || !dpari_halo_receivers(w, 0)) {
            w->pass++;
            w->state = 0;
        }
    }
    return 0;
}

/* ---- windows ----------------------------------------------------------------------------------
 */

static int64_t dpari_window_stride(const dpar_window *v)
{
    return v->stride > 0 ? v->stride : 1;
}

/* From the first tap to the last. */
static int64_t dpari_window_reach(const dpar_window *v)
{
    return (v->dilation > 0 ? v->dilation : 1) * (v->kernel - 1);
}

DPAR_API dpar_status dpar_window_outputs(const dpar_window *v, int64_t inputs, int64_t *outputs,
                                         dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 30;
    int64_t room, s = dpari_window_stride(v), m;
    if (v->kernel < 1 || v->stride < 0 || v->dilation < 0 || v->pad_low < 0 || v->pad_high < 0) {
        return dpari_say(DPAR_E_ARG, why, "kernel # of at least 1, stride #, dilation #, pad #",
                         v->kernel, v->stride, v->dilation, dpari_least(v->pad_low, v->pad_high));
    }
    if (v->kernel > limit || v->stride > limit || v->dilation > limit || v->pad_low > limit ||
        v->pad_high > limit || inputs < 0 || inputs > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why,
                         "# inputs (0 to 2^60), kernel #, stride #, dilation # (to 2^30)", inputs,
                         v->kernel, v->stride, v->dilation);
    }
    room = inputs + v->pad_low + v->pad_high - dpari_window_reach(v) - 1;
    if (room < 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "a kernel that reaches over # of # inputs and # of padding",
                         dpari_window_reach(v) + 1, inputs, v->pad_low + v->pad_high, 0);
    }
    m = room / s + 1;
    if (v->ceil_mode && room % s != 0 && m * s < inputs + v->pad_low) {
        m++; /* torch: a window that would begin in the right padding is left out */
    }
    *outputs = m;
    return DPAR_OK;
}

DPAR_API void dpar_window_owned(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t lo,
                                int64_t hi, int64_t *y0, int64_t *y1)
{
    int64_t s = dpari_window_stride(v), first, last;
    lo = dpari_most(0, dpari_least(lo, inputs));
    first = dpari_least(outputs, dpari_ceil_div(lo, s));
    last = hi >= inputs ? outputs : dpari_least(outputs, dpari_ceil_div(hi, s));
    *y0 = first;
    *y1 = hi > lo ? dpari_most(first, last) : first;
}

DPAR_API int dpar_window_needs(const dpar_window *v, int64_t y0, int64_t y1, int64_t *lo,
                               int64_t *hi)
{
    int64_t s = dpari_window_stride(v);
    if (y1 <= y0 || y0 < 0 || y1 - 1 > 2 * dpari_halo_limit / s) {
        return 0;
    }
    *lo = s * y0 - v->pad_low;
    *hi = s * (y1 - 1) + dpari_window_reach(v) - v->pad_low + 1;
    return 1;
}

DPAR_API int dpar_window_transposed(const dpar_window *v, int64_t inputs, int64_t y0, int64_t y1,
                                    int64_t *lo, int64_t *hi)
{
    int64_t s = dpari_window_stride(v), first, last;
    if (y1 <= y0 || y0 < 0 || y1 - 1 > 2 * dpari_halo_limit) {
        return 0;
    }
    first = -dpari_floor_div(-(y0 + v->pad_low - dpari_window_reach(v)), s);
    last = dpari_floor_div(y1 - 1 + v->pad_low, s) + 1;
    first = dpari_most(0, first);
    last = dpari_least(inputs, last);
    if (last <= first) {
        return 0;
    }
    *lo = first;
    *hi = last;
    return 1;
}

DPAR_API void dpar_window_halo(const dpar_window *v, int64_t inputs, int periodic, int64_t own_lo,
                               int64_t own_hi, int64_t y0, int64_t y1, int64_t *low, int64_t *high)
{
    int64_t lo, hi;
    *low = 0;
    *high = 0;
    if (!dpar_window_needs(v, y0, y1, &lo, &hi)) {
        return;
    }
    if (!periodic) {
        lo = dpari_most(0, dpari_least(lo, inputs));
        hi = dpari_most(lo, dpari_least(hi, inputs));
    }
    *low = own_lo - lo;
    *high = hi - own_hi;
}

DPAR_API int64_t dpar_window_start(const dpar_window *v, int64_t inputs, int64_t i)
{
    int64_t d = v->dilation > 0 ? v->dilation : 1, group, members, first;
    if (i < 0 || i >= inputs || v->kernel < 1) {
        return -1;
    }
    group = i % d;
    members = (inputs - group - 1) / d + 1;
    if (members < v->kernel) {
        return -1;
    }
    first = dpari_most(0, dpari_least(i / d - v->kernel / 2, members - v->kernel));
    return first * d + group;
}
