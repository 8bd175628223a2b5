/* SPDX-License-Identifier: MIT-0 */
/* The walk over a redistribution's transfers. The boxes that a rank owns under both layouts are
 * products over dims, so a transfer is a product of runs that are consecutive on both sides. If
 * several ranks hold a copy, every rank computes by the same rules which copy serves which
 * receiver: first its own, then those on its node, then shares of equal size. A sender walks the
 * receivers that it may serve as they would walk themselves, which keeps both lists in the same
 * order without communication. */
#include "redistribute.h"

#include "inner.h"

/* The phases of a sender's walk. */
enum { DPARI_TO_NODE, DPARI_TO_ALL, DPARI_TO_ONE, DPARI_TO_OTHER, DPARI_DONE };

/* ---- checking ------------------------------------------------------------------------------- */

/* True if this Partial axis of `to` is the same one in `from`. */
static DPARI_COLD int dpari_partial_stays(const dpar_layout *from, const dpar_layout *to,
                                          int32_t axis)
{
    return axis < from->mesh.axes && from->axis[axis].kind == DPAR_PLACEMENT_PARTIAL &&
           from->axis[axis].op == to->axis[axis].op &&
           from->mesh.axis[axis].size == to->mesh.axis[axis].size &&
           from->mesh.axis[axis].stride == to->mesh.axis[axis].stride &&
           from->mesh.first_rank == to->mesh.first_rank && from->mesh.axes == to->mesh.axes;
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute_check(const dpar_layout *from,
                                                        const dpar_layout *to, dpar_why *why)
{
    int32_t i, op = 0;
    if (from->dims != to->dims) {
        return dpari_wrong(why, "an array of %d dims cannot become one of %d", from->dims,
                           to->dims);
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_wrong(why, "dim %d has %ld elements before and %ld after", i,
                               from->extent[i], to->extent[i]);
        }
    }
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !dpari_partial_stays(from, to, i) &&
            (to->axis[i].op != DPAR_SUM ||
             (i < from->mesh.axes && from->axis[i].kind == DPAR_PLACEMENT_PARTIAL))) {
            return dpari_wrong(
                why, "axis %d: a new partial axis must be a sum, an old one must stay the same", i);
        }
    }
    for (i = 0; i < from->mesh.axes; i++) { /* sums and maxima do not commute */
        if (from->axis[i].kind != DPAR_PLACEMENT_PARTIAL || from->mesh.axis[i].size == 1 ||
            (i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL)) {
            continue; /* it stays partial, see above */
        }
        if (op != 0 && from->axis[i].op != op) {
            return dpari_wrong(
                why, "axis %d is partial by op %d, another by op %d: reduce one at a time", i,
                from->axis[i].op, op);
        }
        op = from->axis[i].op;
    }
    return DPAR_OK;
}

/* ---- the sets of ranks ----------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE uint32_t dpari_axes_of(const dpar_layout *l, int32_t kind)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        set |= l->axis[i].kind == kind ? (uint32_t)1 << i : 0;
    }
    return set;
}

/* True if each stride is larger than the sum that the smaller ones can reach, so that the members
 * of a group ascend. */
static int dpari_mesh_nested(const dpar_mesh *m)
{
    int32_t i, k;
    for (i = 0; i < m->axes; i++) {
        int64_t reach = 0;
        for (k = 0; k < m->axes; k++) {
            reach += k != i && m->axis[k].stride <= m->axis[i].stride
                         ? (int64_t)(m->axis[k].size - 1) * m->axis[k].stride
                         : 0;
        }
        if (m->axis[i].size > 1 && reach >= m->axis[i].stride) {
            return 0;
        }
    }
    return 1;
}

/* Returns the axis in `which` with the largest stride below `below`, or -1. */
static int32_t dpari_largest_axis(const dpar_mesh *m, uint32_t which, int64_t below)
{
    int32_t i, best = -1;
    for (i = 0; i < m->axes; i++) {
        const dpar_mesh_axis *a = &m->axis[i];
        if ((which >> i & 1u) && a->size > 1 && a->stride < below &&
            (best < 0 || a->stride > m->axis[best].stride)) {
            best = i;
        }
    }
    return best;
}

/* Counts the members of a group that are ranks below x. `base` is the member with coordinate 0, and
 * the mesh is nested. */
static int32_t dpari_members_below(const dpar_mesh *m, uint32_t which, int32_t base, int64_t x)
{
    int64_t rest = x - base, below = INT64_MAX;
    int32_t count = 0, inner = dpar_mesh_group_size(m, which), i;
    while (rest > 0 && (i = dpari_largest_axis(m, which, below)) >= 0) {
        const dpar_mesh_axis *a = &m->axis[i];
        int64_t digit = rest / a->stride;
        inner /= a->size;
        if (digit >= a->size) {
            return count + a->size * inner;
        }
        count += (int32_t)digit * inner;
        rest -= digit * a->stride;
        below = a->stride;
    }
    return count + (rest > 0);
}

/* ---- which replica sends --------------------------------------------------------------------- */

static const dpar_layout *dpari_from(const dpar_redistribute_cursor *w)
{
    return w->sends ? &w->mine : &w->other;
}

static const dpar_layout *dpari_to(const dpar_redistribute_cursor *w)
{
    return w->sends ? &w->other : &w->mine;
}

/* True if rank q holds the same elements as the ranks at `coord`, which is 0 on replicated axes. */
static int dpari_holds(const dpar_layout *from, uint32_t replicated, const int32_t *coord,
                       int32_t q)
{
    int32_t at[DPAR_MAX_AXES], i;
    if (!dpar_mesh_coords(&from->mesh, q, at)) {
        return 0;
    }
    for (i = 0; i < from->mesh.axes; i++) {
        if ((replicated >> i & 1u) == 0 && at[i] != coord[i]) {
            return 0;
        }
    }
    return 1;
}

/* Finds the copies at `coord` that may send to q, which are those nearest to it: returns their
 * number, and *low receives the number of the first one. */
DPARI_STATIC_NOINLINE int32_t dpari_pool(const dpar_redistribute_cursor *w, const int32_t *coord,
                                         int32_t q, int32_t *low)
{
    const dpar_mesh *m = &dpari_from(w)->mesh;
    uint32_t copies = w->free_from;
    int32_t base = dpar_mesh_rank(m, coord), n = dpar_mesh_group_size(m, copies), near_by;
    *low = 0;
    if (n == 1 || w->per_node < 0) {
        return 1;
    }
    if (dpari_holds(dpari_from(w), copies, coord, q)) {
        *low = dpar_mesh_group_index(m, copies, q);
        return 1;
    }
    if (w->per_node > 0 && w->nested) {
        int64_t node = (int64_t)(q / w->per_node) * w->per_node;
        *low = dpari_members_below(m, copies, base, node);
        near_by = dpari_members_below(m, copies, base, node + w->per_node) - *low;
        if (near_by > 0) {
            return near_by;
        }
        *low = 0;
    }
    return n;
}

/* Finds the number of q among the receivers of its box that share a pool of n copies, and how many
 * receivers these are. They are those of its node if the pool is that of the node, otherwise all.
 */
DPARI_STATIC_NOINLINE int32_t dpari_takers(const dpar_redistribute_cursor *w, int32_t q, int32_t n,
                                           int32_t *number)
{
    const dpar_mesh *m = &dpari_to(w)->mesh;
    int32_t takers = dpar_mesh_group_size(m, w->free_to), first, below;
    int64_t node;
    *number = dpar_mesh_group_index(m, w->free_to, q);
    if (n == w->copies || w->per_node < 1 || w->nested < 2) {
        return takers;
    }
    node = (int64_t)(q / w->per_node) * w->per_node;
    first = dpar_mesh_group_member(m, w->free_to, q, 0);
    below = dpari_members_below(m, w->free_to, first, node);
    *number -= below;
    return dpari_members_below(m, w->free_to, first, node + w->per_node) - below;
}

/* ---- how copies share the sending ------------------------------------------------------------ */

enum { DPARI_SCATTERED, DPARI_ROWS, DPARI_EVEN_ROWS };

static int32_t dpari_rows_of(int32_t rule)
{
    switch (rule) {
    case DPAR_SPLIT_CHUNK:
    case DPAR_SPLIT_EVEN:
    case DPAR_SPLIT_FLOOR: return DPARI_EVEN_ROWS;
    case DPAR_SPLIT_RAGGED: return DPARI_ROWS;
    default: return DPARI_SCATTERED;
    }
}

/* Counts the parts into which the axes of a layout cut dim d. *rows says whether the indices of a
 * part are consecutive (ROWS) and all parts nearly equal (EVEN_ROWS); it is SCATTERED otherwise,
 * and if nothing cuts the dim. */
static int32_t dpari_parts_of(const dpar_layout *l, int32_t d, int32_t *rows)
{
    int32_t parts = 1, i, worst = DPARI_EVEN_ROWS;
    for (i = 0; i < l->mesh.axes; i++) {
        const dpar_placement *p = &l->axis[i];
        if (p->kind == DPAR_PLACEMENT_SHARD && p->dim == d && l->mesh.axis[i].size > 1) {
            int32_t kind = dpari_rows_of(p->rule);
            worst = kind < worst ? kind : worst;
            parts *= l->mesh.axis[i].size;
        }
    }
    *rows = parts == 1 ? DPARI_SCATTERED : worst;
    return parts;
}

/* Returns the dim to cut further, or -1 if none can be cut. Dims that the receivers cut into rows
 * come first, then the one with the longest parts. */
static int32_t dpari_share_dim(const dpar_redistribute_cursor *w)
{
    int32_t d, best = -1, best_rows = 0, rows;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t length = w->held[d] / w->grid[d];
        (void)dpari_parts_of(dpari_to(w), d, &rows);
        rows = rows != DPARI_SCATTERED;
        if (w->grid[d] == w->outer[d] && length > 1 &&
            (best < 0 || rows > best_rows ||
             (rows == best_rows && length > w->held[best] / w->grid[best]))) {
            best = d;
            best_rows = rows;
        }
    }
    return best;
}

/* Chooses a grid of at most `shares` parts over what the copies hold. If both sides have rows,
 * outer parts end where the receivers' boxes end; more parts cut these further. */
static void dpari_share_grid(dpar_redistribute_cursor *w, int32_t shares)
{
    int32_t d, rows, held, own, parts;
    for (d = 0; d < w->mine.dims; d++) {
        w->outer[d] = w->grid[d] = 1;
    }
    for (d = 0; d < w->mine.dims && shares > 1; d++) {
        own = dpari_parts_of(dpari_from(w), d, &held);
        parts = dpari_parts_of(dpari_to(w), d, &rows);
        if (rows == DPARI_EVEN_ROWS && (own == 1 || held != DPARI_SCATTERED)) {
            w->outer[d] = (int32_t)dpari_gcd(shares, parts / dpari_gcd(parts, own));
        }
        w->grid[d] = w->outer[d];
        shares /= w->outer[d];
    }
    while (shares > 1 && (d = dpari_share_dim(w)) >= 0) {
        int32_t more = (int32_t)dpari_least(shares, w->held[d] / w->outer[d]);
        w->grid[d] *= more;
        shares /= more;
    }
}

/* Returns by how many copies round `round` of takers / n is shifted. Receivers that hold a copy
 * themselves are one round, or one in every n in a row. The shift distributes them over all copies.
 */
static int32_t dpari_share_skew(int32_t n, int32_t takers, int32_t round)
{
    int32_t rounds = takers / n;
    return (int32_t)(round / (rounds / dpari_gcd(rounds, n)) % n);
}

/* Chooses which of n copies, the first at w->copy, serve receiver `number` of `takers`. As long as
 * there are at least as many receivers as copies, each copy serves one of them. The copies then
 * share the boxes of the remaining receivers: an equal number of copies for each box, or if that
 * does not divide, equal pieces of a line through all of these boxes. */
static DPARI_COLD void dpari_share_out(dpar_redistribute_cursor *w, int32_t n, int32_t takers,
                                       int32_t number)
{
    int32_t left = takers % n;
    int64_t which = number - (takers - left), begin = which * n, end = begin + n;
    int even = number < takers - left || n % left == 0;
    w->line = -1;
    w->units = n;
    w->left = left;
    if (number < takers - left) {
        w->first = (int32_t)(((int64_t)number + dpari_share_skew(n, takers, number / n)) % n);
    } else {
        w->first = (int32_t)(begin / left);
        w->into = begin - (int64_t)w->first * left;
    }
    dpari_share_grid(w, even && number >= takers - left ? n / left : 1);
    if (!even) {
        w->line = dpari_share_dim(w);
        if (w->line >= 0) {
            w->grid[w->line] = (int32_t)((end - 1) / left) - w->first + 1;
        }
    }
}

/* Returns where part i of n even parts begins. */
static int64_t dpari_even_start(int64_t size, int32_t n, int32_t i)
{
    return size / n * i + dpari_least(i, size % n);
}

/* Returns where outer part j of dim d begins: at an even part, moved to the nearest end of a
 * receiver's box. Both sides have rows, so that local index x is global index lead + x. */
DPARI_STATIC_NOINLINE int64_t dpari_outer_start(const dpar_redistribute_cursor *w, int32_t d,
                                                int32_t j)
{
    int32_t coord[DPAR_MAX_AXES];
    int64_t x = dpari_even_start(w->held[d], w->outer[d], j), there, run;
    if (x <= 0 || x >= w->held[d]) {
        return x;
    }
    (void)dpar_layout_locate(dpari_to(w), d, w->lead[d] + x, coord, &there, &run);
    there = dpari_most(0, x - there);
    run = dpari_least(w->held[d], x + run);
    return x - there < run - x ? there : run;
}

/* Returns where share i of dim d begins, in local indices of the copies. */
static int64_t dpari_share_start(const dpar_redistribute_cursor *w, int32_t d, int32_t i)
{
    int32_t more = w->grid[d] / w->outer[d];
    int64_t low, high;
    if (w->grid[d] == 1) {
        return i == 0 ? 0 : w->held[d];
    }
    if (d == w->line) { /* copies share a line through all boxes; a box has one unit per copy */
        int64_t unit = (int64_t)i * w->left - w->into;
        unit = dpari_most(0, dpari_least(unit, w->units));
        return w->held[d] / w->units * unit + w->held[d] % w->units * unit / w->units;
    }
    low = dpari_outer_start(w, d, i / more);
    if (i % more == 0) {
        return low;
    }
    high = dpari_outer_start(w, d, i / more + 1);
    return low + dpari_even_start(high - low, more, i % more);
}

/* Returns the share of dim d that has local index x. */
static int32_t dpari_share_of(const dpar_redistribute_cursor *w, int32_t d, int64_t x)
{
    int32_t more = w->grid[d] / w->outer[d], low = 0, high = w->grid[d], at;
    int64_t from, to;
    if (w->grid[d] == 1) {
        return 0;
    }
    if (d == w->line) {
        while (high - low > 1) {
            at = low + (high - low) / 2;
            if (dpari_share_start(w, d, at) <= x) {
                low = at;
            } else {
                high = at;
            }
        }
        return low;
    }
    at = dpari_even_of(w->held[d], w->outer[d], x);
    while (dpari_outer_start(w, d, at) > x) {
        at--;
    }
    while (dpari_outer_start(w, d, at + 1) <= x) {
        at++;
    }
    from = dpari_outer_start(w, d, at);
    to = dpari_outer_start(w, d, at + 1);
    return at * more + dpari_even_of(to - from, more, x - from);
}

/* ---- the walk ------------------------------------------------------------------------------- */

/* Computes the piece of dim d that begins at at[d]. It ends where one of the sides is no longer
 * consecutive. */
static void dpari_walk_piece(dpar_redistribute_cursor *w, int32_t d)
{
    int64_t here, there;
    w->begin[d] = dpar_layout_global(&w->mine, w->rank, d, w->at[d], &here);
    (void)dpar_layout_locate(&w->other, d, w->begin[d], w->peer, &w->there[d], &there);
    w->length[d] = dpari_least(w->high[d] - w->at[d], dpari_least(here, there));
}

/* Moves to the first box of the range. Returns 0 if the range is empty. */
static int dpari_walk_first(dpar_redistribute_cursor *w)
{
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        if (w->low[d] >= w->high[d]) {
            return 0;
        }
    }
    for (d = 0; d < w->mine.dims; d++) {
        w->at[d] = w->low[d];
        dpari_walk_piece(w, d);
    }
    return 1;
}

/* Moves to the next box. Returns 0 at the end. */
static int dpari_walk_box(dpar_redistribute_cursor *w)
{
    int32_t d;
    for (d = w->mine.dims - 1; d >= 0; d--) {
        w->at[d] += w->length[d];
        if (w->at[d] < w->high[d]) {
            dpari_walk_piece(w, d);
            return 1;
        }
        w->at[d] = w->low[d];
        dpari_walk_piece(w, d);
    }
    return 0;
}

/* True if the rank receives anything. On a Partial axis of `to` that is not one of `from`, only
 * coordinate 0 does. */
static int dpari_takes(const dpar_redistribute_cursor *w, int32_t rank)
{
    const dpar_layout *from = dpari_from(w), *to = dpari_to(w);
    int32_t at[DPAR_MAX_AXES], i;
    (void)dpar_mesh_coords(&to->mesh, rank, at);
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && at[i] != 0 &&
            !dpari_partial_stays(from, to, i)) {
            return 0;
        }
    }
    return 1;
}

/* Sets the ranks that a sender serves one by one: itself, and the ranks of its node in `to` if not
 * all copies are on this node. */
static void dpari_walk_node(dpar_redistribute_cursor *w)
{
    const dpar_mesh *m = &w->mine.mesh, *to = &w->other.mesh;
    int64_t last = to->first_rank, node, end;
    int32_t i, base = dpar_mesh_rank(m, w->base);
    w->node = w->rank;
    w->mates = 1;
    if (w->per_node < 2 || !w->nested || !w->state) {
        return;
    }
    node = (int64_t)(w->rank / w->per_node) * w->per_node;
    end = node + w->per_node;
    if (dpari_members_below(m, w->free_from, base, end) -
            dpari_members_below(m, w->free_from, base, node) ==
        w->copies) {
        return;
    }
    for (i = 0; i < to->axes; i++) {
        last += (int64_t)(to->axis[i].size - 1) * to->axis[i].stride;
    }
    node = dpari_most(node, to->first_rank);
    w->node = (int32_t)node;
    w->mates = (int32_t)dpari_most(0, dpari_least(end, last + 1) - node);
}

/* Makes the walk go over the array of `rank` in the layout `mine`. */
static void dpari_stand(dpar_redistribute_cursor *w, int32_t rank)
{
    const dpar_layout *from = dpari_from(w), *to = dpari_to(w);
    int32_t i;
    w->rank = rank;
    w->state =
        dpar_mesh_coords(&w->mine.mesh, rank, w->coord) && (w->sends || dpari_takes(w, rank));
    for (i = 0; i < w->mine.mesh.axes && w->state; i++) { /* sums that stay keep the coordinate */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        w->peer[i] = stays ? w->coord[i] : 0;
        w->base[i] = w->free_from >> i & 1u ? 0 : w->coord[i];
    }
    dpar_layout_local(&w->mine, rank, w->high, w->lead);
    for (i = 0; i < w->mine.dims; i++) {
        w->low[i] = 0;
        w->held[i] = w->high[i];
    }
    w->fresh = 1;
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute_first(dpar_redistribute_cursor *w,
                                                        const dpar_layout *from,
                                                        const dpar_layout *to, int32_t rank,
                                                        int32_t direction, int32_t per_node)
{
    int32_t i;
    if (per_node < DPAR_REDISTRIBUTE_PRIMARY ||
        (direction != DPAR_TRANSFER_RECV && direction != DPAR_TRANSFER_SEND) ||
        dpar_redistribute_check(from, to, NULL) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_zero(w, sizeof(*w));
    w->sends = direction == DPAR_TRANSFER_SEND;
    w->mine = w->sends ? *from : *to;
    w->other = w->sends ? *to : *from;
    w->per_node = per_node;
    if (dpari_mesh_nested(
            &from->mesh)) { /* 1: copies of a node are consecutive; 2: its receivers too */
        w->nested = 1 + dpari_mesh_nested(&to->mesh);
    }
    w->free_from = dpari_axes_of(from, DPAR_PLACEMENT_REPLICATE);
    w->free_to = dpari_axes_of(to, DPAR_PLACEMENT_REPLICATE);
    for (i = 0; i < from->mesh.axes; i++) { /* the check refused different ops */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        if (from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !stays) {
            w->part_from |= (uint32_t)1 << i;
            w->combine = from->mesh.axis[i].size > 1 ? from->axis[i].op : w->combine;
        }
    }
    w->copies = dpar_mesh_group_size(&from->mesh, w->free_from);
    w->partials = dpar_mesh_group_size(&from->mesh, w->part_from);
    dpari_stand(w, rank);
    w->phase = w->copies == 1 || per_node < 0 ? DPARI_TO_ALL : DPARI_TO_NODE;
    w->me = w->sends ? rank : -1;
    dpari_walk_node(w);
    return DPAR_OK;
}

/* ---- receiving: the boxes, from each partial rank, from each copy that has a share ---------- */

/* Cuts the box to part share[] of the copies' grid. */
static void dpari_cut_box(dpar_redistribute_cursor *w)
{
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t from = dpari_share_start(w, d, w->share[d]);
        int64_t to = dpari_share_start(w, d, w->share[d] + 1);
        w->cut[d] = dpari_most(w->there[d], from);
        w->cut_length[d] = dpari_least(w->there[d] + w->length[d], to) - w->cut[d];
    }
}

/* Determines which copies of one partial rank send the box, and in how many shares. */
static DPARI_COLD void dpari_begin_shares(dpar_redistribute_cursor *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t i, n, holder, number = 0, takers = 1;
    for (i = 0; i < m->axes; i++) {
        w->base[i] = w->peer[i]; /* 0 on axes that do not shard */
    }
    holder = dpar_mesh_group_member(m, w->part_from, dpar_mesh_rank(m, w->base), w->partial);
    (void)dpar_mesh_coords(m, holder, w->base);
    n = dpari_pool(w, w->base, w->rank, &w->copy);
    if (n > 1) {
        takers = dpari_takers(w, w->rank, n, &number);
    }
    dpar_layout_local(&w->other, holder, w->held, n > 1 ? w->lead : NULL);
    dpari_share_out(w, n, takers, number);
    w->copy += w->first;
    for (i = 0; i < w->mine.dims; i++) {
        w->share[i] = dpari_share_of(w, i, w->there[i]);
    }
}

/* Moves to the next share that overlaps the box, with the last dim fastest. Returns 0 at the end.
 */
static int dpari_next_share(dpar_redistribute_cursor *w)
{
    int32_t d;
    for (d = w->mine.dims - 1; d >= 0; d--) {
        int64_t end = w->there[d] + w->length[d];
        int64_t next = dpari_share_start(w, d, w->share[d] + 1);
        if (next < end) {
            w->share[d] = dpari_share_of(w, d, next); /* skips empty ones */
            return 1;
        }
        w->share[d] = dpari_share_of(w, d, w->there[d]);
    }
    return 0;
}

static int dpari_next_receive(dpar_redistribute_cursor *w)
{
    int32_t d, number = 0;
    if (w->fresh) {
        w->fresh = 0;
        if (!dpari_walk_first(w)) {
            return 0;
        }
        dpari_begin_shares(w);
    } else if (!dpari_next_share(w)) {
        if (++w->partial == w->partials) {
            w->partial = 0;
            if (!dpari_walk_box(w)) {
                return 0;
            }
        }
        dpari_begin_shares(w);
    }
    for (d = 0; d < w->mine.dims; d++) {
        number = number * w->grid[d] + w->share[d];
    }
    w->now = dpar_mesh_group_member(&w->other.mesh, w->free_from,
                                    dpar_mesh_rank(&w->other.mesh, w->base), w->copy + number);
    w->op = w->partial == 0 ? DPAR_COPY : w->combine;
    dpari_cut_box(w);
    return 1;
}

/* ---- sending: to the ranks of the node one by one, then to all others ----------------------- */

/* Sets the range of the walk to what the rank, copy `me` of n, sends of the box of receiver
 * `number` of `takers`. Returns 0 if that is nothing. */
static int dpari_range(dpar_redistribute_cursor *w, int32_t n, int32_t takers, int32_t number,
                       int32_t me)
{
    int32_t d, at;
    dpari_share_out(w, n, takers, number);
    at = me - w->first;
    if (at < 0) {
        return 0;
    }
    for (d = w->mine.dims - 1; d >= 0; d--) {
        int32_t i = at % w->grid[d];
        at /= w->grid[d];
        w->low[d] = dpari_share_start(w, d, i);
        w->high[d] = dpari_share_start(w, d, i + 1);
    }
    return at == 0;
}

/* Narrows the local ranges of `rank` in a layout to the indices between the first and the last one
 * of the ranks at coord[] in another layout. Returns the number of elements in them. */
static int64_t dpari_meet(const dpar_layout *l, int32_t rank, const dpar_layout *other,
                          const int32_t *coord, int64_t *low, int64_t *high)
{
    int64_t size = 1, from, to;
    int32_t d;
    for (d = 0; d < l->dims; d++) {
        if (!dpari_layout_span(other, coord, d, &from, &to)) {
            return 0;
        }
        low[d] = dpari_most(low[d], dpari_layout_before(l, rank, d, from));
        high[d] = dpari_least(high[d], dpari_layout_before(l, rank, d, to));
        if (low[d] >= high[d]) {
            return 0;
        }
        size = dpari_mul(size, high[d] - low[d], &size) ? size : INT64_MAX;
    }
    return size;
}

/* Turns the walk round, from a sender to the receiver `rank` of the other layout, or back. */
DPARI_STATIC_NOINLINE void dpari_turn_round(dpar_redistribute_cursor *w, int32_t rank)
{
    int32_t d;
    for (d = 0; d < (int32_t)sizeof(dpar_layout); d++) {
        char *mine = (char *)&w->mine + d, *other = (char *)&w->other + d, c = *mine;
        *mine = *other;
        *other = c;
    }
    w->sends = !w->sends;
    w->partial = 0;
    dpari_stand(w, rank);
    for (d = 0; d < w->mine.dims && !w->sends; d++) { /* dpari_range_to left the range there */
        w->low[d] = w->at[d];
        w->high[d] = w->begin[d];
    }
}

/* Sets the range for rank q of the node: this rank's share, as far as it overlaps the elements of
 * q. If these are scattered in it, taker is -1, and the walk is to turn round and go over the
 * elements of q. */
static int dpari_range_to(dpar_redistribute_cursor *w, int32_t q)
{
    int32_t low, n, takers, number, me, d;
    int64_t here;
    if (!dpar_mesh_coords(&w->other.mesh, q, w->guest) || !dpari_takes(w, q)) {
        return 0;
    }
    n = dpari_pool(w, w->base, q, &low);
    takers = dpari_takers(w, q, n, &number);
    me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->me) - low;
    if (!dpari_range(w, n, takers, number, me)) { /* also if q has another pool */
        return 0;
    }
    here = dpari_meet(&w->mine, w->rank, &w->other, w->guest, w->low, w->high);
    dpar_layout_local(&w->other, q, w->begin, NULL);
    for (d = 0; d < w->mine.dims; d++) {
        w->at[d] = 0;
    }
    w->taker = dpari_meet(&w->other, q, &w->mine, w->coord, w->at, w->begin) < here ? -1 : 0;
    w->takers = 1;
    return here > 0;
}

/* Moves to the next rank of the node (or only this rank) that receives something. Returns 0 if
 * there is none left. */
DPARI_STATIC_NOINLINE int dpari_next_mate(dpar_redistribute_cursor *w)
{
    while (w->phase == DPARI_TO_NODE) {
        if (w->mate == w->mates) {
            w->phase = DPARI_TO_ALL;
        } else if (dpari_range_to(w, w->node + w->mate++)) {
            return 1;
        }
    }
    return 0;
}

/* Moves to the next range, which may be empty, for receivers on any node: first all that receive
 * whole boxes, then the one or two that receive a share. Returns 0 at the end. */
DPARI_STATIC_NOINLINE int dpari_next_phase(dpar_redistribute_cursor *w)
{
    int32_t me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->rank);
    int32_t takers = dpar_mesh_group_size(&w->other.mesh, w->free_to), d;
    int32_t n = w->per_node < 0 ? 1 : w->copies, left = takers % n;
    if (w->phase == DPARI_TO_ALL) {
        w->phase = me < n ? DPARI_TO_ONE : DPARI_DONE;
        w->around = 1;
        w->taker = 0;
        w->takers = me < n ? takers / n : 0; /* one in every n */
        for (d = 0; d < w->mine.dims; d++) {
            w->low[d] = 0;
            w->high[d] = w->held[d];
        }
        if (w->takers > 0) {
            return 1;
        }
    }
    while (left > 0 && (w->phase == DPARI_TO_ONE || w->phase == DPARI_TO_OTHER)) {
        int64_t first = (int64_t)me * left / n, last = ((int64_t)(me + 1) * left - 1) / n;
        w->around = 0;
        w->taker = takers - left + (int32_t)(w->phase == DPARI_TO_ONE ? first : last);
        w->takers = w->taker + 1;
        w->phase = w->phase == DPARI_TO_ONE && last > first ? DPARI_TO_OTHER : DPARI_DONE;
        if (dpari_range(w, n, takers, w->taker, me)) {
            return 1;
        }
    }
    return 0;
}

/* Returns the next receiver of the box, or -1 if it does not receive from this rank. */
static int32_t dpari_next_taker(dpar_redistribute_cursor *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t first = dpar_mesh_rank(m, w->peer), q, low, n; /* peer: 0 on axes that do not shard */
    int64_t number = w->copy++;
    if (w->phase == DPARI_TO_NODE) {
        q = w->node + w->mate - 1;
        return dpar_mesh_group_member(m, w->free_to, q, 0) == first ? q : -1;
    }
    if (w->around) { /* in the order of dpari_share_out */
        int32_t me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->rank);
        int32_t skew;
        n = w->per_node < 0 ? 1 : w->copies;
        skew = dpari_share_skew(n, dpar_mesh_group_size(m, w->free_to), (int32_t)number);
        number = number * n + (me + n - skew) % n;
    }
    q = dpar_mesh_group_member(m, w->free_to, first, (int32_t)number);
    if (w->copies == 1 || w->per_node < 0 || dpari_pool(w, w->base, q, &low) == w->copies) {
        return q;
    }
    return -1; /* it has a nearer copy */
}

/* Sends the box to the next of the receivers that take it from this rank. Returns 0 at the end, and
 * if the walk is to turn round. */
static int dpari_next_send(dpar_redistribute_cursor *w)
{
    for (;;) {
        if (w->fresh) {
            if ((!dpari_next_mate(w) && !dpari_next_phase(w)) || w->taker < 0) {
                return 0;
            }
            w->copy = w->taker;
            w->fresh = !dpari_walk_first(w);
            continue;
        }
        while (w->copy < w->takers) {
            w->now = dpari_next_taker(w);
            if (w->now >= 0) {
                int first = dpar_mesh_group_index(&w->mine.mesh, w->part_from, w->rank) == 0;
                w->op = first ? DPAR_COPY : w->combine;
                return 1;
            }
        }
        w->copy = w->taker;
        w->fresh = !dpari_walk_box(w);
    }
}

/* Moves to the next transfer. A sender that walks over the elements of a receiver takes those that
 * come from itself. */
static int dpari_walk_on(dpar_redistribute_cursor *w)
{
    while (w->state) {
        if (w->sends) {
            if (dpari_next_send(w)) {
                return 1;
            }
            w->state = w->taker < 0;
            if (w->state) {
                dpari_turn_round(w, w->node + w->mate - 1);
            }
        } else if (!dpari_next_receive(w)) {
            if (w->me < 0) {
                w->state = 0;
            } else {
                dpari_turn_round(w, w->me);
            }
        } else if (w->me < 0 || w->now == w->me) {
            return 1;
        }
    }
    return 0;
}

DPAR_API int dpar_redistribute_next(dpar_redistribute_cursor *w, dpar_transfer *t)
{
    int32_t d, turned;
    if (!dpari_walk_on(w)) {
        return 0;
    }
    turned = w->me >= 0 && !w->sends;
    dpari_zero(t, sizeof(*t));
    t->peer = turned ? w->rank : w->now;
    t->dims = w->mine.dims;
    t->op = w->op;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t skip = w->sends ? 0 : w->cut[d] - w->there[d];
        t->extent[d] = w->sends ? w->length[d] : w->cut_length[d];
        t->mine[d] = (turned ? w->there[d] : w->at[d]) + skip;
        t->theirs[d] = (turned ? w->at[d] : w->there[d]) + skip;
        t->global[d] = w->begin[d] + skip;
    }
    return 1;
}
