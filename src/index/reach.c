/* SPDX-License-Identifier: MIT-0 */
/* The walk over a halo's transfers: for a receiver, which ranks own its halo points; for a sender,
 * which receivers read its points. A receiver's points are visited in several passes, one for each
 * path to them (inside the grid, over a fold or a pole, over each edge of a cubed sphere). Within a
 * pass each dim is cut into segments with one owner, and a product of segments is one transfer. A
 * sender walks what its receivers would walk and keeps the transfers that name it. Both sides
 * therefore list the same transfers in the same order without communication. */
#include "reach.h"

#include "redistribute.h"

/* ---- where points come from ------------------------------------------------------------------ */

/* The passes over a receiver's points. Each pass visits the points on one path: in each dim it is a
 * range of points, which one map takes into one dim of the sender. */
enum {
    DPARI_PLAIN,
    DPARI_SEAM,   /* the row on a fold, its first half */
    DPARI_TWICE,  /* the second half of that row, with the images of the first */
    DPARI_FOLDED, /* beyond the fold */
    DPARI_SOUTH,  /* beyond the low pole */
    DPARI_NORTH,
    DPARI_EDGES,                      /* 24 passes, over each of the 4 edges of 6 faces */
    DPARI_BORDERS = DPARI_EDGES + 24, /* 24 passes to the border beyond an edge that a third face
                                         owns */
    DPARI_PASSES = DPARI_BORDERS + 24
};

/* How a pass finds the sender's point for a point x of the receiver, in one dim. */
typedef struct dpari_halo_map {
    int64_t lo, hi; /* for points x with lo <= x < hi */
    int64_t offset; /* the sender's point is offset + x, */
    int32_t back;   /* or offset - x if this is 1, */
    int32_t from;   /* in this dim of the sender */
    int32_t half;   /* 1 or 2 for only the columns in this half of the row on a fold; 0 for all */
} dpari_halo_map;

static const int64_t dpari_halo_far = INT64_C(1) << 62;

static int dpari_halo_has_seam(const dpar_halo *halo)
{
    return halo->folds && halo->on_row;
}

/* Returns the edge of a pass over edges. Each face has four consecutive passes. */
static int32_t dpari_halo_pass_edge(int32_t pass)
{
    return (pass - DPARI_EDGES) % 4;
}

/* Returns the kind of points along the edge of a pass, DPAR_HALO_AT_x. */
static int32_t dpari_halo_along(const dpar_halo *halo, int32_t pass)
{
    return halo->points[halo->grid.dims - (dpari_halo_pass_edge(pass) >= DPARI_EDGE_SOUTH ? 1 : 2)];
}

/* True if a pass has anything to do. */
static int dpari_halo_has_pass(const dpar_halo *halo, int32_t pass)
{
    switch (pass) {
    case DPARI_PLAIN: return 1;
    case DPARI_SEAM:
    case DPARI_TWICE: return dpari_halo_has_seam(halo);
    case DPARI_FOLDED: return halo->folds != 0;
    case DPARI_SOUTH: return (halo->poles & DPAR_HALO_POLE_LOW) != 0;
    case DPARI_NORTH: return (halo->poles & DPAR_HALO_POLE_HIGH) != 0;
    default:
        return halo->cube &&
               (pass < DPARI_BORDERS || dpari_halo_along(halo, pass) != DPAR_HALO_AT_CELLS);
    }
}

/* From an even face, east leads to the next face without a turn, and north to the face after that
 * with a turn. From an odd face, east and north are exchanged. West and south lead back. */
DPARI_API DPARI_COLD int32_t dpari_halo_edge(int32_t face, int32_t edge, int32_t *turn)
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
    int32_t edges, face, turn; /* number of edges, 1 or 2; the last face; all quarter turns */
    int32_t edge[2], turns[2]; /* each edge and its quarter turns */
} dpari_halo_way;

static DPARI_COLD void dpari_halo_way_of(const dpar_halo *halo, int32_t pass, dpari_halo_way *w)
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
    w->edge[1] += dpari_halo_along(halo, pass) == DPAR_HALO_AT_LOW_FACES;
    w->face = dpari_halo_edge(w->face, w->edge[1], &w->turns[1]);
    w->turn = (w->turn + w->turns[1]) % 4;
}

/* Sets the range of points that a pass visits in the dim along the edge. The face beyond the edge
 * has points on both of its borders, but owns only one border: with low faces not the last one,
 * with high faces not the first one, and the reverse if the face is turned. */
static void dpari_halo_map_along(const dpar_halo *halo, int32_t pass, int32_t turn,
                                 dpari_halo_map *map)
{
    const int32_t points = dpari_halo_along(halo, pass), low = points == DPAR_HALO_AT_LOW_FACES;
    const int64_t n = halo->grid.extent[halo->grid.dims - 1];
    const int64_t first = points == DPAR_HALO_AT_HIGH_FACES ? -1 : 0;
    const int at_first = low == (turn != 0);
    const int64_t border = at_first ? first : first + n;
    if (points == DPAR_HALO_AT_CELLS) {
        return;
    }
    map->lo = pass >= DPARI_BORDERS ? border : first + at_first;
    map->hi = pass >= DPARI_BORDERS ? border + 1 : first + at_first + n;
}

/* Returns the dim in which an edge is crossed. */
static int32_t dpari_halo_across(const dpar_halo *halo, int32_t edge)
{
    return halo->grid.dims - (edge >= DPARI_EDGE_SOUTH ? 2 : 1);
}

/* Maps one of the last two dims over the edges of a path. Over an edge with a turn, the dim along
 * the edge counts backwards. */
static void dpari_halo_go_over(const dpar_halo *halo, const dpari_halo_way *w, int32_t d,
                               dpari_halo_map *map)
{
    const int64_t n = halo->grid.extent[halo->grid.dims - 1];
    int32_t k, shift = 1; /* point i of N cells becomes N - shift - i */
    if (halo->points[d] == DPAR_HALO_AT_LOW_FACES) {
        shift = 0;
    } else if (halo->points[d] == DPAR_HALO_AT_HIGH_FACES) {
        shift = 2;
    }
    for (k = 0; k < w->edges; k++) {
        const int32_t edge = w->edge[k];
        if (map->from == dpari_halo_across(halo, edge)) {
            map->offset += edge == DPARI_EDGE_EAST || edge == DPARI_EDGE_NORTH ? -n : n;
        } else if (w->turns[k] != 0) {
            map->back = !map->back;
            map->offset = n - map->offset - shift;
        }
        map->from = w->turns[k] != 0 ? 2 * halo->grid.dims - 3 - map->from : map->from;
    }
}

/* Sets the map of a pass over an edge of a face. */
static void dpari_halo_map_edge(const dpar_halo *halo, int32_t pass, int32_t d, dpari_halo_map *map)
{
    const int64_t n = halo->grid.extent[halo->grid.dims - 1];
    dpari_halo_way w;
    int up;
    dpari_halo_way_of(halo, pass, &w);
    if (d == 0) {
        map->lo = (pass - DPARI_EDGES) / 4 % 6;
        map->hi = map->lo + 1;
        map->offset = w.face - map->lo;
    }
    if (d < halo->grid.dims - 2) {
        return;
    }
    up = w.edge[0] == DPARI_EDGE_EAST || w.edge[0] == DPARI_EDGE_NORTH;
    if (d == dpari_halo_across(halo, w.edge[0])) {
        map->lo = up ? n : -n;
        map->hi = up ? 2 * n : 0;
    } else {
        dpari_halo_map_along(halo, pass, w.turns[0], map);
    }
    dpari_halo_go_over(halo, &w, d, map);
}

static void dpari_halo_map_rows(const dpar_halo *halo, int32_t pass, dpari_halo_map *map)
{
    int64_t rows = dpar_halo_points(halo, halo->fold), on = halo->on_row;
    if (pass == DPARI_SEAM || pass == DPARI_TWICE) {
        map->lo = rows - 1;
        return;
    }
    map->back = 1;
    if (pass == DPARI_SOUTH) {
        on = (halo->pole_rows & DPAR_HALO_POLE_LOW) != 0;
        map->lo = -dpari_halo_behind(halo, DPAR_HALO_POLE_LOW);
        map->hi = 0;
        map->offset = on - 1;
        return;
    }
    if (pass == DPARI_NORTH) {
        on = (halo->pole_rows & DPAR_HALO_POLE_HIGH) != 0;
    }
    map->lo = rows;
    map->hi = 2 * rows - on;
    map->offset = 2 * (rows - 1) + 1 - on;
}

static void dpari_halo_map_columns(const dpar_halo *halo, int32_t pass, dpari_halo_map *map)
{
    int64_t columns = dpar_halo_points(halo, halo->mirror);
    if (pass == DPARI_SOUTH || pass == DPARI_NORTH) {
        map->offset = columns / 2;
        return;
    }
    if (pass == DPARI_SEAM) {
        map->half = 1;
        return;
    }
    map->half = pass == DPARI_TWICE ? 2 : 0;
    map->back = 1;
    map->offset = columns - 1 + halo->shift;
}

static DPARI_COLD void dpari_halo_map_of(const dpar_halo *halo, int32_t pass, int32_t d,
                                         dpari_halo_map *map)
{
    int wraps = (int)(halo->periodic >> d & 1u);
    map->lo = wraps ? -dpari_halo_far : 0;
    map->hi = wraps ? dpari_halo_far : dpar_halo_points(halo, d);
    map->offset = 0;
    map->back = 0;
    map->from = d;
    map->half = 0;
    if (pass == DPARI_PLAIN) {
        map->hi -= dpari_halo_has_seam(halo) && d == halo->fold;
    } else if (pass >= DPARI_EDGES) {
        dpari_halo_map_edge(halo, pass, d, map);
    } else if (d == halo->fold) {
        dpari_halo_map_rows(halo, pass, map);
    } else if (d == halo->mirror) {
        dpari_halo_map_columns(halo, pass, map);
    }
}

/* Computes the columns [at[0], at[1]) of the row on the fold that are images: the later column of
 * each pair. */
static void dpari_halo_second_half(const dpar_halo *halo, int64_t *at)
{
    int64_t columns = dpar_halo_points(halo, halo->mirror);
    at[0] = halo->shift > 0 ? columns / 2 + 1 : (columns - 1 + halo->shift) / 2 + 1;
    at[1] = halo->shift > 0 ? columns : columns + halo->shift;
}

/* Wraps point i around a ring. */
static int64_t dpari_halo_ring(int64_t i, int64_t points)
{
    return i - dpari_floor_div(i, points) * points;
}

/* Returns 1 if column x is in the half of the map. *n receives for how many columns from x on the
 * answer is the same. */
static int dpari_halo_in_half(const dpar_halo *halo, const dpari_halo_map *map, int64_t x,
                              int64_t *n)
{
    int64_t columns = dpar_halo_points(halo, halo->mirror), i = dpari_halo_ring(x, columns),
            end = columns, half[2];
    int second;
    dpari_halo_second_half(halo, half);
    second = i >= half[0] && i < half[1];
    if (second) {
        end = half[1];
    } else if (i < half[0]) {
        end = half[0];
    }
    *n = dpari_least(*n, end - i);
    return second == (map->half == 2);
}

/* ---- one dim of the walk --------------------------------------------------------------------- */

/* Computes the segment at x[d]: points with one owner, on the same side of the receiver's bounds.
 * Sets n, g, source, the bits of `inside` and `reversed`, and the coordinates of the source.
 * Returns 0 if nothing arrives in these n points. */
static int dpari_halo_segment(dpar_halo_cursor *cursor, int32_t d, int32_t *coord)
{
    const dpar_halo *halo = cursor->h;
    int64_t x = cursor->x[d], lo = cursor->at[d][0], hi = cursor->at[d][1], n, to, at[2];
    int inside = x >= lo && x < hi;
    dpari_halo_map m;
    n = cursor->fill[d][1];
    if (x < lo) {
        n = lo;
    } else if (inside) {
        n = hi;
    }
    n -= x;
    cursor->inside &= ~((uint32_t)1 << d);
    cursor->inside |= (uint32_t)inside << d;
    cursor->reversed &= ~((uint32_t)1 << d);
    dpari_halo_map_of(halo, cursor->pass, d, &m);
    if (x < m.lo || x >= m.hi) {
        cursor->n[d] = x < m.lo ? dpari_least(n, m.lo - x) : n;
        return 0;
    }
    n = dpari_least(n, m.hi - x);
    if (m.half != 0 && !dpari_halo_in_half(halo, &m, x, &n)) {
        cursor->n[d] = n;
        return 0;
    }
    to = m.back ? m.offset - x : m.offset + x;
    if (halo->periodic >> m.from & 1u) {
        to = dpari_halo_ring(to, dpar_halo_points(halo, m.from));
    }
    dpari_halo_owner(halo, m.from, to, coord, at);
    n = dpari_least(n, m.back ? to - at[0] + 1 : at[1] - to);
    cursor->g[m.from] = m.back ? to - n + 1 : to;
    cursor->source[m.from] = at[0];
    cursor->reversed |= (uint32_t)m.back << d;
    cursor->n[d] = n;
    return 1;
}

/* ---- the walk over one receiver -------------------------------------------------------------- */

/* Counts in how many of the first n dims the segment is outside the receiver's own points. */
static int32_t dpari_halo_beyond(const dpar_halo_cursor *cursor, int32_t n)
{
    int32_t d, beyond = 0;
    for (d = 0; d < n; d++) {
        beyond += (int32_t)(~cursor->inside >> d & 1u);
    }
    return beyond;
}

/* True if the segments of the earlier dims are outside in as many dims as allowed, so that dim d
 * must be inside. */
static int dpari_halo_only_inside(const dpar_halo_cursor *cursor, int32_t d)
{
    return cursor->outside <= d && dpari_halo_beyond(cursor, d) >= cursor->outside;
}

/* Moves to the first segment of a dim. */
static void dpari_halo_enter(dpar_halo_cursor *cursor, int32_t d)
{
    cursor->x[d] = dpari_halo_only_inside(cursor, d) ? cursor->at[d][0] : cursor->fill[d][0];
}

/* After a segment of another rank, returns the distance to the next point that the sender owns.
 * Wide halos skip many segments with it. */
static int64_t dpari_halo_skip(const dpar_halo_cursor *cursor, int32_t d)
{
    dpari_halo_map m;
    int64_t ahead, s;
    dpari_halo_map_of(cursor->h, cursor->pass, d, &m);
    s = m.from;
    ahead =
        m.back ? cursor->g[s] + cursor->n[d] - cursor->own[s][1] : cursor->own[s][0] - cursor->g[s];
    if (ahead < 0) {
        ahead +=
            cursor->h->periodic >> s & 1u ? dpar_halo_points(cursor->h, m.from) : dpari_halo_far;
    }
    return ahead;
}

/* Moves from x[d] on to the next segment, or for a sender to the next one of which it is the
 * source. */
static int dpari_halo_seek(dpar_halo_cursor *cursor, int32_t d)
{
    int64_t end = dpari_halo_only_inside(cursor, d) ? cursor->at[d][1] : cursor->fill[d][1];
    int32_t other[DPAR_MAX_AXES];
    while (cursor->x[d] < end) {
        dpari_halo_map m;
        if (!dpari_halo_segment(cursor, d, cursor->sends ? other : cursor->peer)) {
            cursor->x[d] += cursor->n[d];
            continue;
        }
        dpari_halo_map_of(cursor->h, cursor->pass, d, &m);
        if (!cursor->sends || cursor->source[m.from] == cursor->own[m.from][0]) {
            return 1;
        }
        cursor->x[d] += dpari_halo_skip(cursor, d);
    }
    return 0;
}

/* True if the box of segments is sent. A rank's own cells are not sent to itself. */
static int dpari_halo_travels(const dpar_halo_cursor *cursor)
{
    const int32_t beyond = dpari_halo_beyond(cursor, cursor->h->grid.dims);
    return beyond == 0 ? cursor->pass == DPARI_TWICE : beyond <= cursor->outside;
}

/* Moves to the next box of segments of this receiver, or with `fresh` to its first one. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_box_next(dpar_halo_cursor *cursor, int fresh)
{
    int32_t dims = cursor->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_enter(cursor, 0);
    } else {
        cursor->x[d] += cursor->n[d];
    }
    while (d >= 0) {
        if (!dpari_halo_seek(cursor, d)) {
            if (--d >= 0) {
                cursor->x[d] += cursor->n[d];
            }
        } else if (d < dims - 1) {
            dpari_halo_enter(cursor, ++d);
        } else if (dpari_halo_travels(cursor)) {
            return 1;
        } else {
            cursor->x[d] += cursor->n[d];
        }
    }
    return 0;
}

/* ---- the receivers of a sender --------------------------------------------------------------- */

/* Sets the points that a receiver with own points at[d] and an array `box` may receive in dim d. */
static DPARI_COLD void dpari_halo_receiver(dpar_halo_cursor *cursor, int32_t d, const int64_t *box)
{
    const dpar_halo *halo = cursor->h;
    cursor->origin[d] = box[0];
    cursor->fill[d][0] = box[0];
    cursor->fill[d][1] = box[1];
    if (cursor->mode >=
        DPAR_HALO_SYNC) { /* the faces of own cells, also the faces that other ranks own */
        cursor->fill[d][0] = cursor->at[d][0] - (halo->points[d] == DPAR_HALO_AT_HIGH_FACES);
        cursor->fill[d][1] = cursor->at[d][1] + (halo->points[d] == DPAR_HALO_AT_LOW_FACES);
        if (!dpari_halo_closed(halo, d)) {
            cursor->fill[d][0] = dpari_most(cursor->fill[d][0], 0);
            cursor->fill[d][1] = dpari_least(cursor->fill[d][1], dpar_halo_points(halo, d));
        }
    }
}

/* Returns how many blocks a dim is cut into, and computes the coordinates of number n of them, in
 * any order. */
static int64_t dpari_halo_part(const dpar_halo *halo, int32_t d, int64_t n, int32_t *coord)
{
    int64_t parts = 1;
    int32_t i;
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (halo->grid.axis[i].kind == DPAR_PLACEMENT_SHARD && halo->grid.axis[i].dim == d) {
            int32_t size = halo->grid.mesh.axis[i].size;
            coord[i] = (int32_t)(n / parts % size);
            parts *= size;
        }
    }
    return parts;
}

/* Sets the range of receivers in dim d. With windows it is a range of blocks, which are visited one
 * by one. Otherwise it is a range of points that begins at the first point of a block; in a
 * periodic dim it continues beyond the ends. */
static void dpari_halo_reach(dpar_halo_cursor *cursor, int32_t d)
{
    const dpar_halo *halo = cursor->h;
    int64_t points = dpar_halo_points(halo, d), lo, hi, at[2];
    int32_t coord[DPAR_MAX_AXES];
    dpari_halo_map m;
    dpari_halo_map_of(halo, cursor->pass, d, &m);
    lo = cursor->own[m.from][0];
    hi = cursor->own[m.from][1];
    cursor->want[d][0] = lo = dpari_most(m.lo, m.back ? m.offset - hi + 1 : lo - m.offset);
    cursor->want[d][1] = hi =
        dpari_least(m.hi, m.back ? m.offset - cursor->own[m.from][0] + 1 : hi - m.offset);
    cursor->from[d][0] = cursor->from[d][1] = 0;
    if (hi <= lo) {
        return;
    }
    if (halo->window[d].kernel != 0) {
        cursor->from[d][1] = dpari_halo_part(halo, d, 0, coord);
        return;
    }
    lo -= halo->high[d];
    hi += halo->low[d];
    if ((halo->periodic >> d & 1u) == 0) {
        lo = dpari_most(lo, 0);
        hi = dpari_least(hi, points);
        if (hi <= lo) {
            return;
        }
    }
    dpari_halo_owner(halo, d, dpari_halo_ring(lo, points), coord, at);
    lo -= dpari_halo_ring(lo, points) - at[0];
    cursor->from[d][0] = lo;
    cursor->from[d][1] = dpari_least(hi, lo + points); /* at most once around the dim */
}

/* True if the points `want` overlap those that the receiver may receive, in a periodic dim after
 * any number of turns. */
static int dpari_halo_meets(const dpar_halo_cursor *cursor, int32_t d)
{
    int64_t lo = cursor->want[d][0], hi = cursor->want[d][1],
            points = dpar_halo_points(cursor->h, d);
    if (cursor->h->periodic >> d & 1u) {
        int64_t turns = dpari_floor_div(cursor->fill[d][0] - hi, points) + 1;
        lo += turns * points;
        hi += turns * points;
    }
    return lo < cursor->fill[d][1] && hi > cursor->fill[d][0];
}

/* Moves to the receiver at from[d][0], or to a later one if that receives nothing. Returns 1, or 0
 * if there is none. */
static int dpari_halo_find(dpar_halo_cursor *cursor, int32_t d)
{
    const dpar_halo *halo = cursor->h;
    int64_t box[2];
    for (; cursor->from[d][0] < cursor->from[d][1]; cursor->from[d][0]++) {
        if (halo->window[d].kernel == 0) {
            int64_t points = dpar_halo_points(halo, d);
            dpari_halo_owner(halo, d, dpari_halo_ring(cursor->from[d][0], points), cursor->peer,
                             cursor->at[d]);
            box[0] = cursor->at[d][0] - halo->low[d];
            box[1] = cursor->at[d][1] + halo->high[d];
            dpari_halo_receiver(cursor, d, box);
            return 1;
        }
        (void)dpari_halo_part(halo, d, cursor->from[d][0], cursor->peer);
        if (dpari_halo_range(halo, cursor->peer, d, cursor->at[d], box)) {
            dpari_halo_receiver(cursor, d, box);
            if (dpari_halo_meets(cursor, d)) {
                return 1;
            }
        }
    }
    return 0;
}

static void dpari_halo_advance(dpar_halo_cursor *cursor, int32_t d)
{
    cursor->from[d][0] +=
        cursor->h->window[d].kernel != 0 ? 1 : cursor->at[d][1] - cursor->at[d][0];
}

/* Moves to the next receiver, or with `fresh` to the first one. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_receivers(dpar_halo_cursor *cursor, int fresh)
{
    int32_t dims = cursor->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_reach(cursor, 0);
    } else {
        dpari_halo_advance(cursor, d);
    }
    while (d >= 0) {
        if (!dpari_halo_find(cursor, d)) {
            if (--d >= 0) {
                dpari_halo_advance(cursor, d);
            }
        } else if (d == dims - 1) {
            return 1;
        } else {
            dpari_halo_reach(cursor, ++d);
        }
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_halo_may_begin(const dpar_halo *halo, int32_t rank,
                                                   int32_t direction, int32_t mode, dpar_why *why)
{
    int32_t d, i, blocks = 0;
    if ((direction != DPAR_TRANSFER_RECV && direction != DPAR_TRANSFER_SEND) ||
        mode < DPAR_HALO_FORWARD || mode > DPAR_HALO_SYNC_ADJOINT) {
        return dpari_wrong(why, "direction=%d must be 0 or 1, mode=%d must be 0 to 3", direction,
                           mode);
    }
    for (i = 0; halo->owner != NULL && i < halo->grid.mesh.size; i++) {
        blocks += halo->owner[i] == rank;
    }
    if (blocks > 1 && rank >= 0) {
        return dpari_wrong(why, "rank %d owns %d blocks, more than one", rank, blocks);
    }
    if (halo->cube && halo->partner == NULL &&
        (halo->points[halo->grid.dims - 2] != DPAR_HALO_AT_CELLS ||
         halo->points[halo->grid.dims - 1] != DPAR_HALO_AT_CELLS)) {
        return dpari_wrong(
            why, "fields on faces of a cubed sphere come in pairs (u, v), but partner is NULL");
    }
    for (d = 0; d < halo->grid.dims && mode >= DPAR_HALO_SYNC; d++) {
        if ((halo->points[d] == DPAR_HALO_AT_LOW_FACES && halo->high[d] < 1) ||
            (halo->points[d] == DPAR_HALO_AT_HIGH_FACES && halo->low[d] < 1)) {
            return dpari_wrong(
                why,
                "dim %d: SYNC needs a halo that holds the other face, but low=%ld and high=%ld", d,
                halo->low[d], halo->high[d]);
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_first(dpar_halo_cursor *cursor, const dpar_halo *halo,
                                                int32_t rank, int32_t direction, int32_t mode,
                                                dpar_why *why)
{
    dpar_status st = dpar_halo_check(halo, why);
    int64_t box[2];
    int32_t i, nothing = 0;
    if (st == DPAR_OK) {
        st = dpari_halo_may_begin(halo, rank, direction, mode, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(cursor, sizeof(*cursor));
    cursor->h = halo;
    cursor->rank = rank;
    cursor->mode = mode;
    cursor->outside = mode < DPAR_HALO_SYNC ? dpari_halo_outside(halo) : halo->grid.dims;
    cursor->sends = (direction == DPAR_TRANSFER_SEND) != (mode % 2 == DPAR_HALO_ADJOINT);
    cursor->pass = DPARI_PASSES; /* nothing to walk, unless the rank has points */
    if (!dpari_halo_coords(halo, rank, cursor->coord)) {
        return DPAR_OK;
    }
    for (i = 0; i < halo->grid.dims; i++) {
        if (!dpari_halo_range(halo, cursor->coord, i, cursor->own[i], box)) {
            return DPAR_OK;
        }
        nothing |= cursor->own[i][1] <= cursor->own[i][0];
        cursor->at[i][0] = cursor->own[i][0];
        cursor->at[i][1] = cursor->own[i][1];
        dpari_halo_receiver(cursor, i, box);
    }
    for (i = 0; i < halo->grid.mesh.axes;
         i++) { /* a replica exchanges only with ranks of the same replica */
        cursor->peer[i] = cursor->coord[i];
    }
    if (!cursor->sends || !nothing) {
        cursor->pass = DPARI_PLAIN;
    }
    return DPAR_OK;
}

/* Sets the dims that are exchanged in this pass, and the turn of vectors. */
static void dpari_halo_turn(const dpar_halo_cursor *cursor, dpar_transfer *t)
{
    int32_t adjoint = cursor->mode % 2, turn = cursor->pass >= DPARI_TWICE ? 2 : 0;
    if (cursor->pass >= DPARI_EDGES) {
        dpari_halo_way way;
        dpari_halo_way_of(cursor->h, cursor->pass, &way);
        turn = way.turn;
        if (turn % 2 != 0) {
            t->swap[0] = t->dims - 2;
            t->swap[1] = t->dims - 1;
        }
    }
    t->turn = adjoint ? (4 - turn) % 4 : turn;
}

DPARI_STATIC_NOINLINE DPARI_COLD void dpari_halo_fill(const dpar_halo_cursor *cursor, int32_t peer,
                                                      dpar_transfer *t)
{
    const dpar_halo *halo = cursor->h, *from = halo;
    int32_t adjoint = cursor->mode % 2, d;
    dpari_zero(t, sizeof(*t));
    t->peer = peer;
    t->dims = halo->grid.dims;
    t->op = adjoint ? DPAR_SUM : DPAR_COPY;
    dpari_halo_turn(cursor, t);
    if (halo->partner != NULL && t->turn % 2 != 0) {
        from = halo->partner;
    }
    for (d = 0; d < t->dims; d++) {
        int64_t own[2], box[2], there = cursor->x[d] - cursor->origin[d], here;
        int32_t s = t->swap[0] == t->swap[1] || d < t->dims - 2 ? d : 2 * t->dims - 3 - d;
        (void)dpari_halo_range(from, cursor->sends ? cursor->coord : cursor->peer, s, own, box);
        here = cursor->g[s] - box[0];
        t->extent[adjoint ? d : s] = cursor->n[d];
        t->flip |= (cursor->reversed >> d & 1u) << (adjoint ? s : d);
        if (cursor->sends) {
            t->mine[s] = here;
            t->theirs[d] = there;
            t->global[s] = cursor->g[s];
        } else {
            t->mine[d] = there;
            t->theirs[s] = here;
            t->global[d] = cursor->x[d];
        }
    }
}

/* Returns the rank in the communicator of the walk's peer, or -1 if the block is masked. */
static int32_t dpari_halo_peer(const dpar_halo_cursor *cursor)
{
    int32_t block = dpar_mesh_rank(&cursor->h->grid.mesh, cursor->peer);
    return cursor->h->owner == NULL ? block : cursor->h->owner[block];
}

DPAR_API int dpar_halo_next(dpar_halo_cursor *cursor, dpar_transfer *transfer)
{
    while (cursor->pass < DPARI_PASSES) {
        int fresh = cursor->state < 2;
        if (!dpari_halo_has_pass(cursor->h, cursor->pass) ||
            (cursor->sends && cursor->state == 0 && !dpari_halo_receivers(cursor, 1))) {
            cursor->pass++;
            continue;
        }
        cursor->state = 2;
        if (dpari_halo_box_next(cursor, fresh)) {
            int32_t peer = dpari_halo_peer(cursor);
            if (peer >= 0) {
                dpari_halo_fill(cursor, peer, transfer);
                return 1;
            }
            continue;
        }
        cursor->state = 1; /* continues with another receiver, or with the next pass */
        if (!cursor->sends || !dpari_halo_receivers(cursor, 0)) {
            cursor->pass++;
            cursor->state = 0;
        }
    }
    return 0;
}
