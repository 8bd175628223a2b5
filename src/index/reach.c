/* SPDX-License-Identifier: MIT-0 */
/* The walk over a halo's transfers: for a receiver, from which owners its halo points come; for a
 * sender, which receivers read its points. A receiver's points are visited in several passes, one
 * for each way in which they may be reached (inside the grid, over a fold or a pole, over each edge
 * of a cubed sphere). Within a pass each dim is cut into segments with one owner, and a product of
 * segments is one transfer. A sender walks what its receivers would walk and keeps the transfers
 * that name it. Both sides therefore list the same transfers in the same order without
 * communication. */
#include "reach.h"

#include "redistribute.h"

/* ---- where points come from -------------------------------------------------------------------
 */

/* The passes over a receiver's points. Each pass visits the points that are reached in one way: in
 * each dim a range of points, which one map takes into one dim of the sender. */
enum {
    DPARI_PLAIN,
    DPARI_SEAM,   /* the row on a fold, its first half */
    DPARI_TWICE,  /* its second half, with the images of the first */
    DPARI_FOLDED, /* beyond the fold */
    DPARI_SOUTH,  /* beyond the low pole */
    DPARI_NORTH,
    DPARI_EDGES,                      /* 24 passes: over each of the 4 edges of 6 faces */
    DPARI_BORDERS = DPARI_EDGES + 24, /* 24 more: to the border there that a third face owns */
    DPARI_PASSES = DPARI_BORDERS + 24
};

/* How a pass finds the sender's point for a point x of the receiver, in one dim. */
typedef struct dpari_halo_map {
    int64_t lo, hi; /* for points x with lo <= x < hi */
    int64_t offset; /* the sender's point is offset + x, */
    int32_t back;   /* or offset - x if this is 1, */
    int32_t from;   /* in this dim of the sender */
    int32_t half;   /* 1 or 2: only columns in this half of the row on a fold; 0: all */
} dpari_halo_map;

static const int64_t dpari_halo_far = INT64_C(1) << 62;

static int dpari_halo_has_seam(const dpar_halo *h)
{
    return h->folds && h->on_row;
}

/* Returns the edge of a pass over edges. Four passes follow each other for each face. */
static int32_t dpari_halo_pass_edge(int32_t pass)
{
    return (pass - DPARI_EDGES) % 4;
}

/* Returns the kind of points along that edge, DPAR_HALO_AT_x. */
static int32_t dpari_halo_along(const dpar_halo *h, int32_t pass)
{
    return h->points[h->grid.dims - (dpari_halo_pass_edge(pass) >= DPARI_EDGE_SOUTH ? 1 : 2)];
}

/* True if a pass has anything to do. */
static int dpari_halo_has_pass(const dpar_halo *h, int32_t pass)
{
    switch (pass) {
    case DPARI_PLAIN: return 1;
    case DPARI_SEAM:
    case DPARI_TWICE: return dpari_halo_has_seam(h);
    case DPARI_FOLDED: return h->folds != 0;
    case DPARI_SOUTH: return (h->poles & DPAR_HALO_POLE_LOW) != 0;
    case DPARI_NORTH: return (h->poles & DPAR_HALO_POLE_HIGH) != 0;
    default:
        return h->cube && (pass < DPARI_BORDERS || dpari_halo_along(h, pass) != DPAR_HALO_AT_CELLS);
    }
}

/* From an even face, east leads to the next face without a turn, and north to the face after it
 * with a turn. From an odd face it is the other way round. West and south lead back. */
DPARI_API int32_t dpari_halo_edge(int32_t face, int32_t edge, int32_t *turn)
{
    int32_t along_y = edge >= DPARI_EDGE_SOUTH, step;
    if (face < 0 || face > 5 || edge < DPARI_EDGE_WEST || edge > DPARI_EDGE_NORTH) {
        return -1;
    }
    step = (edge == DPARI_EDGE_EAST) == (face % 2 == 0) ? 1 : 2;
    if (edge == DPARI_EDGE_WEST || edge == DPARI_EDGE_SOUTH) {
        step = (edge == DPARI_EDGE_SOUTH) == (face % 2 == 0) ? -1 : -2;
    } else if (edge == DPARI_EDGE_NORTH) {
        step = face % 2 == 0 ? 2 : 1;
    }
    *turn = along_y ? 1 : 3;
    if (step == 1 || step == -1) {
        *turn = 0;
    }
    return (face + step + 6) % 6;
}

/* The path of a pass: over an edge, and for borders also over a second edge to a third face. That
 * face is reached over the west or south edge of the second one, or for points at low faces over
 * its east or north edge. */
typedef struct dpari_halo_way {
    int32_t edges, face, turn; /* 1 or 2 edges; the last face; quarter turns in all */
    int32_t edge[2], turns[2]; /* each edge and its quarter turns */
} dpari_halo_way;

static void dpari_halo_way_of(const dpar_halo *h, int32_t pass, dpari_halo_way *w)
{
    int32_t along_x;
    w->edges = 1;
    w->edge[0] = dpari_halo_pass_edge(pass);
    w->face = dpari_halo_edge((pass - DPARI_EDGES) / 4 % 6, w->edge[0], &w->turns[0]);
    w->turn = w->turns[0];
    if (pass < DPARI_BORDERS) {
        return;
    }
    along_x = (w->edge[0] >= DPARI_EDGE_SOUTH) != (w->turn != 0);
    w->edges = 2;
    w->edge[1] = along_x ? DPARI_EDGE_WEST : DPARI_EDGE_SOUTH;
    w->edge[1] += dpari_halo_along(h, pass) == DPAR_HALO_AT_LOW_FACES;
    w->face = dpari_halo_edge(w->face, w->edge[1], &w->turns[1]);
    w->turn = (w->turn + w->turns[1]) % 4;
}

/* Sets the range of points that a pass visits in the dim along the edge. The face beyond the edge
 * counts both of its borders, but owns only one. Of low faces it does not own the last one, of high
 * faces the first one; if the face is turned it is the other way round. */
static void dpari_halo_map_along(const dpar_halo *h, int32_t pass, int32_t turn, dpari_halo_map *m)
{
    const int32_t points = dpari_halo_along(h, pass), low = points == DPAR_HALO_AT_LOW_FACES;
    const int64_t n = h->grid.extent[h->grid.dims - 1];
    const int64_t first = points == DPAR_HALO_AT_HIGH_FACES ? -1 : 0;
    const int at_first = low == (turn != 0);
    const int64_t border = at_first ? first : first + n;
    if (points == DPAR_HALO_AT_CELLS) {
        return;
    }
    m->lo = pass >= DPARI_BORDERS ? border : first + at_first;
    m->hi = pass >= DPARI_BORDERS ? border + 1 : first + at_first + n;
}

/* Returns the dim that leads over an edge. */
static int32_t dpari_halo_across(const dpar_halo *h, int32_t edge)
{
    return h->grid.dims - (edge >= DPARI_EDGE_SOUTH ? 2 : 1);
}

/* Maps one of the last two dims over the edges of a path. Over an edge with a turn, the dim along
 * the edge counts backwards. */
static void dpari_halo_go_over(const dpar_halo *h, const dpari_halo_way *w, int32_t d,
                               dpari_halo_map *m)
{
    const int64_t n = h->grid.extent[h->grid.dims - 1];
    int32_t k, shift = 1; /* point i of N cells becomes N - shift - i */
    if (h->points[d] == DPAR_HALO_AT_LOW_FACES) {
        shift = 0;
    } else if (h->points[d] == DPAR_HALO_AT_HIGH_FACES) {
        shift = 2;
    }
    for (k = 0; k < w->edges; k++) {
        const int32_t edge = w->edge[k];
        if (m->from == dpari_halo_across(h, edge)) {
            m->offset += edge == DPARI_EDGE_EAST || edge == DPARI_EDGE_NORTH ? -n : n;
        } else if (w->turns[k] != 0) {
            m->back = !m->back;
            m->offset = n - m->offset - shift;
        }
        m->from = w->turns[k] != 0 ? 2 * h->grid.dims - 3 - m->from : m->from;
    }
}

/* Sets the map of a pass over an edge of a face. */
static void dpari_halo_map_edge(const dpar_halo *h, int32_t pass, int32_t d, dpari_halo_map *m)
{
    const int64_t n = h->grid.extent[h->grid.dims - 1];
    dpari_halo_way w;
    int up;
    dpari_halo_way_of(h, pass, &w);
    if (d == 0) {
        m->lo = (pass - DPARI_EDGES) / 4 % 6;
        m->hi = m->lo + 1;
        m->offset = w.face - m->lo;
    }
    if (d < h->grid.dims - 2) {
        return;
    }
    up = w.edge[0] == DPARI_EDGE_EAST || w.edge[0] == DPARI_EDGE_NORTH;
    if (d == dpari_halo_across(h, w.edge[0])) {
        m->lo = up ? n : -n;
        m->hi = up ? 2 * n : 0;
    } else {
        dpari_halo_map_along(h, pass, w.turns[0], m);
    }
    dpari_halo_go_over(h, &w, d, m);
}

static void dpari_halo_map_rows(const dpar_halo *h, int32_t pass, dpari_halo_map *m)
{
    int64_t rows = dpar_halo_points(h, h->fold), on = h->on_row;
    if (pass == DPARI_SEAM || pass == DPARI_TWICE) {
        m->lo = rows - 1;
        return;
    }
    m->back = 1;
    if (pass == DPARI_SOUTH) {
        on = (h->pole_rows & DPAR_HALO_POLE_LOW) != 0;
        m->lo = -dpari_halo_behind(h, DPAR_HALO_POLE_LOW);
        m->hi = 0;
        m->offset = on - 1;
        return;
    }
    if (pass == DPARI_NORTH) {
        on = (h->pole_rows & DPAR_HALO_POLE_HIGH) != 0;
    }
    m->lo = rows;
    m->hi = 2 * rows - on;
    m->offset = 2 * (rows - 1) + 1 - on;
}

static void dpari_halo_map_columns(const dpar_halo *h, int32_t pass, dpari_halo_map *m)
{
    int64_t columns = dpar_halo_points(h, h->mirror);
    if (pass == DPARI_SOUTH || pass == DPARI_NORTH) {
        m->offset = columns / 2;
        return;
    }
    if (pass == DPARI_SEAM) {
        m->half = 1;
        return;
    }
    m->half = pass == DPARI_TWICE ? 2 : 0;
    m->back = 1;
    m->offset = columns - 1 + h->shift;
}

static void dpari_halo_map_of(const dpar_halo *h, int32_t pass, int32_t d, dpari_halo_map *m)
{
    int wraps = (int)(h->periodic >> d & 1u);
    m->lo = wraps ? -dpari_halo_far : 0;
    m->hi = wraps ? dpari_halo_far : dpar_halo_points(h, d);
    m->offset = 0;
    m->back = 0;
    m->from = d;
    m->half = 0;
    if (pass == DPARI_PLAIN) {
        m->hi -= dpari_halo_has_seam(h) && d == h->fold;
    } else if (pass >= DPARI_EDGES) {
        dpari_halo_map_edge(h, pass, d, m);
    } else if (d == h->fold) {
        dpari_halo_map_rows(h, pass, m);
    } else if (d == h->mirror) {
        dpari_halo_map_columns(h, pass, m);
    }
}

/* Computes the columns [at[0], at[1]) of the row on the fold that are images, the later one of each
 * pair. */
static void dpari_halo_second_half(const dpar_halo *h, int64_t *at)
{
    int64_t columns = dpar_halo_points(h, h->mirror);
    at[0] = h->shift > 0 ? columns / 2 + 1 : (columns - 1 + h->shift) / 2 + 1;
    at[1] = h->shift > 0 ? columns : columns + h->shift;
}

/* Wraps point i around a ring. */
static int64_t dpari_halo_ring(int64_t i, int64_t points)
{
    return i - dpari_floor_div(i, points) * points;
}

/* Returns 1 if column x is in the half of the map. *n receives for how many columns from x on the
 * answer is the same. */
static int dpari_halo_in_half(const dpar_halo *h, const dpari_halo_map *m, int64_t x, int64_t *n)
{
    int64_t columns = dpar_halo_points(h, h->mirror), i = dpari_halo_ring(x, columns),
            end = columns, half[2];
    int second;
    dpari_halo_second_half(h, half);
    second = i >= half[0] && i < half[1];
    if (second) {
        end = half[1];
    } else if (i < half[0]) {
        end = half[0];
    }
    *n = dpari_least(*n, end - i);
    return second == (m->half == 2);
}

/* ---- one dim of the walk ----------------------------------------------------------------------
 */

/* Computes the segment at x[d]: points with one owner, on the same side of the receiver's bounds.
 * Sets n, g, source, the bits of `inside` and `reversed`, and the coordinates of the source.
 * Returns 0 if nothing arrives in these n points. */
static int dpari_halo_segment(dpar_halo_cursor *w, int32_t d, int32_t *coord)
{
    const dpar_halo *h = w->h;
    int64_t x = w->x[d], lo = w->at[d][0], hi = w->at[d][1], n, to, at[2];
    int inside = x >= lo && x < hi;
    dpari_halo_map m;
    n = w->fill[d][1];
    if (x < lo) {
        n = lo;
    } else if (inside) {
        n = hi;
    }
    n -= x;
    w->inside &= ~((uint32_t)1 << d);
    w->inside |= (uint32_t)inside << d;
    w->reversed &= ~((uint32_t)1 << d);
    dpari_halo_map_of(h, w->pass, d, &m);
    if (x < m.lo || x >= m.hi) {
        w->n[d] = x < m.lo ? dpari_least(n, m.lo - x) : n;
        return 0;
    }
    n = dpari_least(n, m.hi - x);
    if (m.half != 0 && !dpari_halo_in_half(h, &m, x, &n)) {
        w->n[d] = n;
        return 0;
    }
    to = m.back ? m.offset - x : m.offset + x;
    if (h->periodic >> m.from & 1u) {
        to = dpari_halo_ring(to, dpar_halo_points(h, m.from));
    }
    dpari_halo_owner(h, m.from, to, coord, at);
    n = dpari_least(n, m.back ? to - at[0] + 1 : at[1] - to);
    w->g[m.from] = m.back ? to - n + 1 : to;
    w->source[m.from] = at[0];
    w->reversed |= (uint32_t)m.back << d;
    w->n[d] = n;
    return 1;
}

/* ---- the walk over one receiver ---------------------------------------------------------------
 */

/* Counts in how many of the first n dims the point is outside. */
static int32_t dpari_halo_beyond(const dpar_halo_cursor *w, int32_t n)
{
    int32_t d, beyond = 0;
    for (d = 0; d < n; d++) {
        beyond += (int32_t)(~w->inside >> d & 1u);
    }
    return beyond;
}

/* True if the earlier dims are outside as often as allowed, so that dim d must be inside. */
static int dpari_halo_only_inside(const dpar_halo_cursor *w, int32_t d)
{
    return w->outside <= d && dpari_halo_beyond(w, d) >= w->outside;
}

/* Moves to the first segment of a dim. */
static void dpari_halo_enter(dpar_halo_cursor *w, int32_t d)
{
    w->x[d] = dpari_halo_only_inside(w, d) ? w->at[d][0] : w->fill[d][0];
}

/* Returns where the sender's own points come next, after a segment of another rank. Wide halos skip
 * many segments this way. */
static int64_t dpari_halo_skip(const dpar_halo_cursor *w, int32_t d)
{
    dpari_halo_map m;
    int64_t ahead, s;
    dpari_halo_map_of(w->h, w->pass, d, &m);
    s = m.from;
    ahead = m.back ? w->g[s] + w->n[d] - w->own[s][1] : w->own[s][0] - w->g[s];
    if (ahead < 0) {
        ahead += w->h->periodic >> s & 1u ? dpar_halo_points(w->h, m.from) : dpari_halo_far;
    }
    return ahead;
}

/* Moves from x[d] on to the next segment, or for a sender to the next one of which it is the
 * source. */
static int dpari_halo_seek(dpar_halo_cursor *w, int32_t d)
{
    int64_t end = dpari_halo_only_inside(w, d) ? w->at[d][1] : w->fill[d][1];
    int32_t other[DPAR_MAX_AXES];
    while (w->x[d] < end) {
        dpari_halo_map m;
        if (!dpari_halo_segment(w, d, w->sends ? other : w->peer)) {
            w->x[d] += w->n[d];
            continue;
        }
        dpari_halo_map_of(w->h, w->pass, d, &m);
        if (!w->sends || w->source[m.from] == w->own[m.from][0]) {
            return 1;
        }
        w->x[d] += dpari_halo_skip(w, d);
    }
    return 0;
}

/* True if the box of segments is sent. The rank's own cells are not. */
static int dpari_halo_travels(const dpar_halo_cursor *w)
{
    const int32_t beyond = dpari_halo_beyond(w, w->h->grid.dims);
    return beyond == 0 ? w->pass == DPARI_TWICE : beyond <= w->outside;
}

/* Moves to the next box of segments of this receiver, or with `fresh` to its first one. */
DPARI_STATIC_NOINLINE int dpari_halo_box_next(dpar_halo_cursor *w, int fresh)
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

/* Sets the points that a receiver with own points at[d] and an array `box` may receive in dim d. */
static void dpari_halo_receiver(dpar_halo_cursor *w, int32_t d, const int64_t *box)
{
    const dpar_halo *h = w->h;
    w->origin[d] = box[0];
    w->fill[d][0] = box[0];
    w->fill[d][1] = box[1];
    if (w->mode >= DPAR_HALO_SYNC) { /* the faces of own cells, also those that other ranks own */
        w->fill[d][0] = w->at[d][0] - (h->points[d] == DPAR_HALO_AT_HIGH_FACES);
        w->fill[d][1] = w->at[d][1] + (h->points[d] == DPAR_HALO_AT_LOW_FACES);
        if (!dpari_halo_closed(h, d)) {
            w->fill[d][0] = dpari_most(w->fill[d][0], 0);
            w->fill[d][1] = dpari_least(w->fill[d][1], dpar_halo_points(h, d));
        }
    }
}

/* Returns how many blocks a dim is cut into, and computes the coordinates of number n of them, in
 * any order. */
static int64_t dpari_halo_part(const dpar_halo *h, int32_t d, int64_t n, int32_t *coord)
{
    int64_t parts = 1;
    int32_t i;
    for (i = 0; i < h->grid.mesh.axes; i++) {
        if (h->grid.axis[i].kind == DPAR_PLACEMENT_SHARD && h->grid.axis[i].dim == d) {
            int32_t size = h->grid.mesh.axis[i].size;
            coord[i] = (int32_t)(n / parts % size);
            parts *= size;
        }
    }
    return parts;
}

/* Sets the range of receivers in dim d. With windows, all blocks are visited one by one. Otherwise
 * the range is one of points, from the first point of a block on; in a periodic dim it continues
 * beyond the ends. */
static void dpari_halo_reach(dpar_halo_cursor *w, int32_t d)
{
    const dpar_halo *h = w->h;
    int64_t points = dpar_halo_points(h, d), lo, hi, at[2];
    int32_t coord[DPAR_MAX_AXES];
    dpari_halo_map m;
    dpari_halo_map_of(h, w->pass, d, &m);
    lo = w->own[m.from][0];
    hi = w->own[m.from][1];
    w->want[d][0] = lo = dpari_most(m.lo, m.back ? m.offset - hi + 1 : lo - m.offset);
    w->want[d][1] = hi =
        dpari_least(m.hi, m.back ? m.offset - w->own[m.from][0] + 1 : hi - m.offset);
    w->from[d][0] = w->from[d][1] = 0;
    if (hi <= lo) {
        return;
    }
    if (h->window[d].kernel != 0) {
        w->from[d][1] = dpari_halo_part(h, d, 0, coord);
        return;
    }
    lo -= h->high[d];
    hi += h->low[d];
    if ((h->periodic >> d & 1u) == 0) {
        lo = dpari_most(lo, 0);
        hi = dpari_least(hi, points);
        if (hi <= lo) {
            return;
        }
    }
    dpari_halo_owner(h, d, dpari_halo_ring(lo, points), coord, at);
    lo -= dpari_halo_ring(lo, points) - at[0];
    w->from[d][0] = lo;
    w->from[d][1] = dpari_least(hi, lo + points); /* once round at most */
}

/* True if the points `want` overlap those that may be filled, in a periodic dim after any number of
 * turns. */
static int dpari_halo_meets(const dpar_halo_cursor *w, int32_t d)
{
    int64_t lo = w->want[d][0], hi = w->want[d][1], points = dpar_halo_points(w->h, d);
    if (w->h->periodic >> d & 1u) {
        int64_t turns = dpari_floor_div(w->fill[d][0] - hi, points) + 1;
        lo += turns * points;
        hi += turns * points;
    }
    return lo < w->fill[d][1] && hi > w->fill[d][0];
}

/* Moves to the receiver at from[d][0], or to the next one if it receives nothing. Returns 0 if
 * there is none. */
static int dpari_halo_find(dpar_halo_cursor *w, int32_t d)
{
    const dpar_halo *h = w->h;
    int64_t box[2];
    for (; w->from[d][0] < w->from[d][1]; w->from[d][0]++) {
        if (h->window[d].kernel == 0) {
            int64_t points = dpar_halo_points(h, d);
            dpari_halo_owner(h, d, dpari_halo_ring(w->from[d][0], points), w->peer, w->at[d]);
            box[0] = w->at[d][0] - h->low[d];
            box[1] = w->at[d][1] + h->high[d];
            dpari_halo_receiver(w, d, box);
            return 1;
        }
        (void)dpari_halo_part(h, d, w->from[d][0], w->peer);
        if (dpari_halo_range(h, w->peer, d, w->at[d], box)) {
            dpari_halo_receiver(w, d, box);
            if (dpari_halo_meets(w, d)) {
                return 1;
            }
        }
    }
    return 0;
}

static void dpari_halo_advance(dpar_halo_cursor *w, int32_t d)
{
    w->from[d][0] += w->h->window[d].kernel != 0 ? 1 : w->at[d][1] - w->at[d][0];
}

/* Moves to the next receiver, or with `fresh` to the first one. */
DPARI_STATIC_NOINLINE int dpari_halo_receivers(dpar_halo_cursor *w, int fresh)
{
    int32_t dims = w->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_reach(w, 0);
    } else {
        dpari_halo_advance(w, d);
    }
    while (d >= 0) {
        if (!dpari_halo_find(w, d)) {
            if (--d >= 0) {
                dpari_halo_advance(w, d);
            }
        } else if (d == dims - 1) {
            return 1;
        } else {
            dpari_halo_reach(w, ++d);
        }
    }
    return 0;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

static dpar_status dpari_halo_may_begin(const dpar_halo *h, int32_t rank, int32_t direction,
                                        int32_t mode, dpar_why *why)
{
    int32_t d, i, blocks = 0;
    if ((direction != DPAR_TRANSFER_RECV && direction != DPAR_TRANSFER_SEND) ||
        mode < DPAR_HALO_FORWARD || mode > DPAR_HALO_SYNC_ADJOINT) {
        return dpari_wrong(why, "direction is %d (0 or 1), mode is %d (0 to 3)", direction, mode);
    }
    for (i = 0; h->owner != NULL && i < h->grid.mesh.size; i++) {
        blocks += h->owner[i] == rank;
    }
    if (blocks > 1 && rank >= 0) {
        return dpari_wrong(why, "rank %d owns %d blocks, more than one", rank, blocks);
    }
    if (h->cube && h->partner == NULL &&
        (h->points[h->grid.dims - 2] != DPAR_HALO_AT_CELLS ||
         h->points[h->grid.dims - 1] != DPAR_HALO_AT_CELLS)) {
        return dpari_wrong(
            why, "fields on faces of a cubed sphere come in pairs (u, v), but partner is NULL");
    }
    for (d = 0; d < h->grid.dims && mode >= DPAR_HALO_SYNC; d++) {
        if ((h->points[d] == DPAR_HALO_AT_LOW_FACES && h->high[d] < 1) ||
            (h->points[d] == DPAR_HALO_AT_HIGH_FACES && h->low[d] < 1)) {
            return dpari_wrong(
                why, "dim %d: SYNC needs a halo for the other face, but they are %ld and %ld", d,
                h->low[d], h->high[d]);
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_halo_first(dpar_halo_cursor *w, const dpar_halo *h, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why)
{
    dpar_status st = dpar_halo_check(h, why);
    int64_t box[2];
    int32_t i, nothing = 0;
    if (st == DPAR_OK) {
        st = dpari_halo_may_begin(h, rank, direction, mode, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(w, sizeof(*w));
    w->h = h;
    w->rank = rank;
    w->mode = mode;
    w->outside = mode < DPAR_HALO_SYNC ? dpari_halo_outside(h) : h->grid.dims;
    w->sends = (direction == DPAR_TRANSFER_SEND) != (mode % 2 == DPAR_HALO_ADJOINT);
    w->pass = DPARI_PASSES; /* nothing to walk, unless the rank has points */
    if (!dpari_halo_coords(h, rank, w->coord)) {
        return DPAR_OK;
    }
    for (i = 0; i < h->grid.dims; i++) {
        if (!dpari_halo_range(h, w->coord, i, w->own[i], box)) {
            return DPAR_OK;
        }
        nothing |= w->own[i][1] <= w->own[i][0];
        w->at[i][0] = w->own[i][0];
        w->at[i][1] = w->own[i][1];
        dpari_halo_receiver(w, i, box);
    }
    for (i = 0; i < h->grid.mesh.axes;
         i++) { /* a replica exchanges with ranks of its own replica */
        w->peer[i] = w->coord[i];
    }
    if (!w->sends || !nothing) {
        w->pass = DPARI_PLAIN;
    }
    return DPAR_OK;
}

/* Sets the dims that are exchanged in this pass, and the turn of vectors. */
static void dpari_halo_turn(const dpar_halo_cursor *w, dpar_transfer *t)
{
    int32_t adjoint = w->mode % 2, turn = w->pass >= DPARI_TWICE ? 2 : 0;
    if (w->pass >= DPARI_EDGES) {
        dpari_halo_way way;
        dpari_halo_way_of(w->h, w->pass, &way);
        turn = way.turn;
        if (turn % 2 != 0) {
            t->swap[0] = t->dims - 2;
            t->swap[1] = t->dims - 1;
        }
    }
    t->turn = adjoint ? (4 - turn) % 4 : turn;
}

DPARI_STATIC_NOINLINE void dpari_halo_fill(const dpar_halo_cursor *w, int32_t peer,
                                           dpar_transfer *t)
{
    const dpar_halo *h = w->h, *from = h;
    int32_t adjoint = w->mode % 2, d;
    dpari_zero(t, sizeof(*t));
    t->peer = peer;
    t->dims = h->grid.dims;
    t->op = adjoint ? DPAR_SUM : DPAR_COPY;
    dpari_halo_turn(w, t);
    if (h->partner != NULL && t->turn % 2 != 0) {
        from = h->partner;
    }
    for (d = 0; d < t->dims; d++) {
        int64_t own[2], box[2], there = w->x[d] - w->origin[d], here;
        int32_t s = t->swap[0] == t->swap[1] || d < t->dims - 2 ? d : 2 * t->dims - 3 - d;
        (void)dpari_halo_range(from, w->sends ? w->coord : w->peer, s, own, box);
        here = w->g[s] - box[0];
        t->extent[adjoint ? d : s] = w->n[d];
        t->flip |= (w->reversed >> d & 1u) << (adjoint ? s : d);
        if (w->sends) {
            t->mine[s] = here;
            t->theirs[d] = there;
            t->global[s] = w->g[s];
        } else {
            t->mine[d] = there;
            t->theirs[s] = here;
            t->global[d] = w->x[d];
        }
    }
}

/* Returns the rank in the communicator of the walk's peer, or -1 if the block is masked. */
static int32_t dpari_halo_peer(const dpar_halo_cursor *w)
{
    int32_t block = dpar_mesh_rank(&w->h->grid.mesh, w->peer);
    return w->h->owner == NULL ? block : w->h->owner[block];
}

DPAR_API int dpar_halo_next(dpar_halo_cursor *w, dpar_transfer *t)
{
    while (w->pass < DPARI_PASSES) {
        int fresh = w->state < 2;
        if (!dpari_halo_has_pass(w->h, w->pass) ||
            (w->sends && w->state == 0 && !dpari_halo_receivers(w, 1))) {
            w->pass++;
            continue;
        }
        w->state = 2;
        if (dpari_halo_box_next(w, fresh)) {
            int32_t peer = dpari_halo_peer(w);
            if (peer >= 0) {
                dpari_halo_fill(w, peer, t);
                return 1;
            }
            continue;
        }
        w->state = 1; /* another receiver, or the next pass */
        if (!w->sends || !dpari_halo_receivers(w, 0)) {
            w->pass++;
            w->state = 0;
        }
    }
    return 0;
}
