/* SPDX-License-Identifier: MIT-0 */
/* The walk over a redistribution's transfers. The boxes that a rank owns under both layouts are
 * products over dims, so a transfer is a product of runs that are consecutive on both sides. If
 * several ranks hold a copy, every rank computes by the same rules which copy serves which
 * receiver: first its own, then those on its node, then shares of equal size. A sender walks the
 * receivers that it may serve as they would walk themselves, which keeps both lists in the same
 * order without communication. */
#include "redistribute.h"

#include "index_private.h"

/* The phases of a sender's walk. */
enum { DPARI_TO_NODE, DPARI_TO_ALL, DPARI_TO_ONE, DPARI_TO_OTHER, DPARI_DONE };

/* ---- checking -------------------------------------------------------------------------------- */

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

DPARI_STATIC_NOINLINE uint32_t dpari_axes_of(const dpar_layout *layout, int32_t kind)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        set |= layout->axis[i].kind == kind ? (uint32_t)1 << i : 0;
    }
    return set;
}

/* True if each stride is larger than the sum that the smaller strides can reach, so that the
 * members of a group ascend. */
static int dpari_mesh_nested(const dpar_mesh *mesh)
{
    int32_t i, k;
    for (i = 0; i < mesh->axes; i++) {
        int64_t reach = 0;
        for (k = 0; k < mesh->axes; k++) {
            reach += k != i && mesh->axis[k].stride <= mesh->axis[i].stride
                         ? (int64_t)(mesh->axis[k].size - 1) * mesh->axis[k].stride
                         : 0;
        }
        if (mesh->axis[i].size > 1 && reach >= mesh->axis[i].stride) {
            return 0;
        }
    }
    return 1;
}

/* Returns the axis in `which` with the largest stride below `below`, or -1. */
static int32_t dpari_largest_axis(const dpar_mesh *mesh, uint32_t which, int64_t below)
{
    int32_t i, best = -1;
    for (i = 0; i < mesh->axes; i++) {
        const dpar_mesh_axis *a = &mesh->axis[i];
        if ((which >> i & 1u) && a->size > 1 && a->stride < below &&
            (best < 0 || a->stride > mesh->axis[best].stride)) {
            best = i;
        }
    }
    return best;
}

/* Counts the members of a group that are ranks below x. `base` is the member with coordinate 0, and
 * the mesh is nested. */
static DPARI_COLD int32_t dpari_members_below(const dpar_mesh *mesh, uint32_t which, int32_t base,
                                              int64_t x)
{
    int64_t rest = x - base, below = INT64_MAX;
    int32_t count = 0, inner = dpar_mesh_group_size(mesh, which), i;
    while (rest > 0 && (i = dpari_largest_axis(mesh, which, below)) >= 0) {
        const dpar_mesh_axis *a = &mesh->axis[i];
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

static const dpar_layout *dpari_from(const dpar_redistribute_cursor *cursor)
{
    return cursor->sends ? &cursor->mine : &cursor->other;
}

static const dpar_layout *dpari_to(const dpar_redistribute_cursor *cursor)
{
    return cursor->sends ? &cursor->other : &cursor->mine;
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

/* Finds the copies at `coord` that may send to q, which are the copies nearest to q. Returns how
 * many there are; *low receives the number of the first one. */
DPARI_STATIC_NOINLINE DPARI_COLD int32_t dpari_pool(const dpar_redistribute_cursor *cursor,
                                                    const int32_t *coord, int32_t q, int32_t *low)
{
    const dpar_mesh *mesh = &dpari_from(cursor)->mesh;
    uint32_t copies = cursor->free_from;
    int32_t base = dpar_mesh_rank(mesh, coord), n = dpar_mesh_group_size(mesh, copies), near_by;
    *low = 0;
    if (n == 1 || cursor->per_node < 0) {
        return 1;
    }
    if (dpari_holds(dpari_from(cursor), copies, coord, q)) {
        *low = dpar_mesh_group_index(mesh, copies, q);
        return 1;
    }
    if (cursor->per_node > 0 && cursor->nested) {
        int64_t node = (int64_t)(q / cursor->per_node) * cursor->per_node;
        *low = dpari_members_below(mesh, copies, base, node);
        near_by = dpari_members_below(mesh, copies, base, node + cursor->per_node) - *low;
        if (near_by > 0) {
            return near_by;
        }
        *low = 0;
    }
    return n;
}

/* Returns how many receivers of the box of q share a pool of n copies, and sets *number to the
 * number of q among them. If the pool is that of the node, they are the receivers on the node,
 * otherwise all receivers. */
DPARI_STATIC_NOINLINE DPARI_COLD int32_t dpari_takers(const dpar_redistribute_cursor *cursor,
                                                      int32_t q, int32_t n, int32_t *number)
{
    const dpar_mesh *mesh = &dpari_to(cursor)->mesh;
    int32_t takers = dpar_mesh_group_size(mesh, cursor->free_to), first, below;
    int64_t node;
    *number = dpar_mesh_group_index(mesh, cursor->free_to, q);
    if (n == cursor->copies || cursor->per_node < 1 || cursor->nested < 2) {
        return takers;
    }
    node = (int64_t)(q / cursor->per_node) * cursor->per_node;
    first = dpar_mesh_group_member(mesh, cursor->free_to, q, 0);
    below = dpari_members_below(mesh, cursor->free_to, first, node);
    *number -= below;
    return dpari_members_below(mesh, cursor->free_to, first, node + cursor->per_node) - below;
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

/* Counts the parts into which the axes of a layout cut dim d. *rows is ROWS if the indices of each
 * part are consecutive, and EVEN_ROWS if also all parts are nearly equal. Otherwise, and if nothing
 * cuts the dim, it is SCATTERED. */
static int32_t dpari_parts_of(const dpar_layout *layout, int32_t d, int32_t *rows)
{
    int32_t parts = 1, i, worst = DPARI_EVEN_ROWS;
    for (i = 0; i < layout->mesh.axes; i++) {
        const dpar_placement *placement = &layout->axis[i];
        if (placement->kind == DPAR_PLACEMENT_SHARD && placement->dim == d &&
            layout->mesh.axis[i].size > 1) {
            int32_t kind = dpari_rows_of(placement->rule);
            worst = kind < worst ? kind : worst;
            parts *= layout->mesh.axis[i].size;
        }
    }
    *rows = parts == 1 ? DPARI_SCATTERED : worst;
    return parts;
}

/* Returns the dim to cut further, or -1 if none can be cut. It prefers dims that the receivers cut
 * into rows, and among these the one with the longest parts. */
static int32_t dpari_share_dim(const dpar_redistribute_cursor *cursor)
{
    int32_t d, best = -1, best_rows = 0, rows;
    for (d = 0; d < cursor->mine.dims; d++) {
        int64_t length = cursor->held[d] / cursor->grid[d];
        (void)dpari_parts_of(dpari_to(cursor), d, &rows);
        rows = rows != DPARI_SCATTERED;
        if (cursor->grid[d] == cursor->outer[d] && length > 1 &&
            (best < 0 || rows > best_rows ||
             (rows == best_rows && length > cursor->held[best] / cursor->grid[best]))) {
            best = d;
            best_rows = rows;
        }
    }
    return best;
}

/* Chooses a grid of at most `shares` parts of the elements that the copies hold. If both sides have
 * rows, outer parts end where the receivers' boxes end; additional parts cut the outer parts
 * further. */
static void dpari_share_grid(dpar_redistribute_cursor *cursor, int32_t shares)
{
    int32_t d, rows, held, own, parts;
    for (d = 0; d < cursor->mine.dims; d++) {
        cursor->outer[d] = cursor->grid[d] = 1;
    }
    for (d = 0; d < cursor->mine.dims && shares > 1; d++) {
        own = dpari_parts_of(dpari_from(cursor), d, &held);
        parts = dpari_parts_of(dpari_to(cursor), d, &rows);
        if (rows == DPARI_EVEN_ROWS && (own == 1 || held != DPARI_SCATTERED)) {
            cursor->outer[d] = (int32_t)dpari_gcd(shares, parts / dpari_gcd(parts, own));
        }
        cursor->grid[d] = cursor->outer[d];
        shares /= cursor->outer[d];
    }
    while (shares > 1 && (d = dpari_share_dim(cursor)) >= 0) {
        int32_t more = (int32_t)dpari_least(shares, cursor->held[d] / cursor->outer[d]);
        cursor->grid[d] *= more;
        shares /= more;
    }
}

/* Returns by how many copies round `round` of takers / n is shifted. Receivers that hold a copy
 * themselves may be one round, or every n-th receiver. The shift distributes them over all
 * copies. */
static int32_t dpari_share_skew(int32_t n, int32_t takers, int32_t round)
{
    int32_t rounds = takers / n;
    return (int32_t)(round / (rounds / dpari_gcd(rounds, n)) % n);
}

/* Chooses which of n copies, the first at cursor->copy, serve receiver `number` of `takers`. As
 * long as there are at least as many receivers as copies, each copy serves one of them. The copies
 * then share the boxes of the remaining receivers: an equal number of copies for each box, or if
 * that does not divide, equal pieces of a line through all of these boxes. */
static DPARI_COLD void dpari_share_out(dpar_redistribute_cursor *cursor, int32_t n, int32_t takers,
                                       int32_t number)
{
    int32_t left = takers % n;
    int64_t which = number - (takers - left), begin = which * n, end = begin + n;
    int even = number < takers - left || n % left == 0;
    cursor->line = -1;
    cursor->units = n;
    cursor->left = left;
    if (number < takers - left) {
        cursor->first = (int32_t)(((int64_t)number + dpari_share_skew(n, takers, number / n)) % n);
    } else {
        cursor->first = (int32_t)(begin / left);
        cursor->into = begin - (int64_t)cursor->first * left;
    }
    dpari_share_grid(cursor, even && number >= takers - left ? n / left : 1);
    if (!even) {
        cursor->line = dpari_share_dim(cursor);
        if (cursor->line >= 0) {
            cursor->grid[cursor->line] = (int32_t)((end - 1) / left) - cursor->first + 1;
        }
    }
}

/* Returns where part i of n even parts begins. */
static int64_t dpari_even_start(int64_t size, int32_t n, int32_t i)
{
    return size / n * i + dpari_least(i, size % n);
}

/* Returns where outer part j of dim d begins: at an even part, moved to the nearest end of a
 * receiver's box. Both sides have rows, so local index x is global index lead + x. */
DPARI_STATIC_NOINLINE int64_t dpari_outer_start(const dpar_redistribute_cursor *cursor, int32_t d,
                                                int32_t j)
{
    int32_t coord[DPAR_MAX_AXES];
    int64_t x = dpari_even_start(cursor->held[d], cursor->outer[d], j), there, run;
    if (x <= 0 || x >= cursor->held[d]) {
        return x;
    }
    (void)dpar_layout_locate(dpari_to(cursor), d, cursor->lead[d] + x, coord, &there, &run);
    there = dpari_most(0, x - there);
    run = dpari_least(cursor->held[d], x + run);
    return x - there < run - x ? there : run;
}

/* Returns where share i of dim d begins, in local indices of the copies. */
static int64_t dpari_share_start(const dpar_redistribute_cursor *cursor, int32_t d, int32_t i)
{
    int32_t more = cursor->grid[d] / cursor->outer[d];
    int64_t low, high;
    if (cursor->grid[d] == 1) {
        return i == 0 ? 0 : cursor->held[d];
    }
    if (d == cursor->line) { /* the copies share a line through all boxes; each box has one unit per
                                copy */
        int64_t unit = (int64_t)i * cursor->left - cursor->into;
        unit = dpari_most(0, dpari_least(unit, cursor->units));
        return cursor->held[d] / cursor->units * unit +
               cursor->held[d] % cursor->units * unit / cursor->units;
    }
    low = dpari_outer_start(cursor, d, i / more);
    if (i % more == 0) {
        return low;
    }
    high = dpari_outer_start(cursor, d, i / more + 1);
    return low + dpari_even_start(high - low, more, i % more);
}

/* Returns the share of dim d that contains local index x. */
static int32_t dpari_share_of(const dpar_redistribute_cursor *cursor, int32_t d, int64_t x)
{
    int32_t more = cursor->grid[d] / cursor->outer[d], low = 0, high = cursor->grid[d], at;
    int64_t from, to;
    if (cursor->grid[d] == 1) {
        return 0;
    }
    if (d == cursor->line) {
        while (high - low > 1) {
            at = low + (high - low) / 2;
            if (dpari_share_start(cursor, d, at) <= x) {
                low = at;
            } else {
                high = at;
            }
        }
        return low;
    }
    at = dpari_even_of(cursor->held[d], cursor->outer[d], x);
    while (dpari_outer_start(cursor, d, at) > x) {
        at--;
    }
    while (dpari_outer_start(cursor, d, at + 1) <= x) {
        at++;
    }
    from = dpari_outer_start(cursor, d, at);
    to = dpari_outer_start(cursor, d, at + 1);
    return at * more + dpari_even_of(to - from, more, x - from);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Computes the piece of dim d that begins at at[d]. It ends where the indices of one side are no
 * longer consecutive. */
static DPARI_COLD void dpari_walk_piece(dpar_redistribute_cursor *cursor, int32_t d)
{
    int64_t here, there;
    cursor->begin[d] = dpar_layout_global(&cursor->mine, cursor->rank, d, cursor->at[d], &here);
    (void)dpar_layout_locate(&cursor->other, d, cursor->begin[d], cursor->peer, &cursor->there[d],
                             &there);
    cursor->length[d] = dpari_least(cursor->high[d] - cursor->at[d], dpari_least(here, there));
}

/* Moves to the first box of the range. Returns 0 if the range is empty. */
static DPARI_COLD int dpari_walk_first(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = 0; d < cursor->mine.dims; d++) {
        if (cursor->low[d] >= cursor->high[d]) {
            return 0;
        }
    }
    for (d = 0; d < cursor->mine.dims; d++) {
        cursor->at[d] = cursor->low[d];
        dpari_walk_piece(cursor, d);
    }
    return 1;
}

/* Moves to the next box. Returns 0 at the end. */
static DPARI_COLD int dpari_walk_box(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = cursor->mine.dims - 1; d >= 0; d--) {
        cursor->at[d] += cursor->length[d];
        if (cursor->at[d] < cursor->high[d]) {
            dpari_walk_piece(cursor, d);
            return 1;
        }
        cursor->at[d] = cursor->low[d];
        dpari_walk_piece(cursor, d);
    }
    return 0;
}

/* True if the rank receives anything. On a Partial axis of `to` that is not Partial in `from`, only
 * coordinate 0 receives. */
static DPARI_COLD int dpari_takes(const dpar_redistribute_cursor *cursor, int32_t rank)
{
    const dpar_layout *from = dpari_from(cursor), *to = dpari_to(cursor);
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
static void dpari_walk_node(dpar_redistribute_cursor *cursor)
{
    const dpar_mesh *mesh = &cursor->mine.mesh, *to = &cursor->other.mesh;
    int64_t last = to->first_rank, node, end;
    int32_t i, base = dpar_mesh_rank(mesh, cursor->base);
    cursor->node = cursor->rank;
    cursor->mates = 1;
    if (cursor->per_node < 2 || !cursor->nested || !cursor->state) {
        return;
    }
    node = (int64_t)(cursor->rank / cursor->per_node) * cursor->per_node;
    end = node + cursor->per_node;
    if (dpari_members_below(mesh, cursor->free_from, base, end) -
            dpari_members_below(mesh, cursor->free_from, base, node) ==
        cursor->copies) {
        return;
    }
    for (i = 0; i < to->axes; i++) {
        last += (int64_t)(to->axis[i].size - 1) * to->axis[i].stride;
    }
    node = dpari_most(node, to->first_rank);
    cursor->node = (int32_t)node;
    cursor->mates = (int32_t)dpari_most(0, dpari_least(end, last + 1) - node);
}

/* Makes the walk go over the array of `rank` in the layout `mine`. */
static DPARI_COLD void dpari_walk_over(dpar_redistribute_cursor *cursor, int32_t rank)
{
    const dpar_layout *from = dpari_from(cursor), *to = dpari_to(cursor);
    int32_t i;
    cursor->rank = rank;
    cursor->state = dpar_mesh_coords(&cursor->mine.mesh, rank, cursor->coord) &&
                    (cursor->sends || dpari_takes(cursor, rank));
    for (i = 0; i < cursor->mine.mesh.axes && cursor->state;
         i++) { /* sums that stay keep the coordinate */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        cursor->peer[i] = stays ? cursor->coord[i] : 0;
        cursor->base[i] = cursor->free_from >> i & 1u ? 0 : cursor->coord[i];
    }
    dpar_layout_local(&cursor->mine, rank, cursor->high, cursor->lead);
    for (i = 0; i < cursor->mine.dims; i++) {
        cursor->low[i] = 0;
        cursor->held[i] = cursor->high[i];
    }
    cursor->fresh = 1;
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute_first(dpar_redistribute_cursor *cursor,
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
    dpari_zero(cursor, sizeof(*cursor));
    cursor->sends = direction == DPAR_TRANSFER_SEND;
    cursor->mine = cursor->sends ? *from : *to;
    cursor->other = cursor->sends ? *to : *from;
    cursor->per_node = per_node;
    if (dpari_mesh_nested(&from->mesh)) { /* 1 if the copies on a node are consecutive, 2 if its
                                             receivers are too */
        cursor->nested = 1 + dpari_mesh_nested(&to->mesh);
    }
    cursor->free_from = dpari_axes_of(from, DPAR_PLACEMENT_REPLICATE);
    cursor->free_to = dpari_axes_of(to, DPAR_PLACEMENT_REPLICATE);
    for (i = 0; i < from->mesh.axes; i++) { /* all ops are the same, because the check refused
                                               others */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        if (from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !stays) {
            cursor->part_from |= (uint32_t)1 << i;
            cursor->combine = from->mesh.axis[i].size > 1 ? from->axis[i].op : cursor->combine;
        }
    }
    cursor->copies = dpar_mesh_group_size(&from->mesh, cursor->free_from);
    cursor->partials = dpar_mesh_group_size(&from->mesh, cursor->part_from);
    dpari_walk_over(cursor, rank);
    cursor->phase = cursor->copies == 1 || per_node < 0 ? DPARI_TO_ALL : DPARI_TO_NODE;
    cursor->me = cursor->sends ? rank : -1;
    dpari_walk_node(cursor);
    return DPAR_OK;
}

/* ---- receiving: the boxes, from each partial rank, from each copy that has a share ----------- */

/* Cuts the box to part share[] of the copies' grid. */
static void dpari_cut_box(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = 0; d < cursor->mine.dims; d++) {
        int64_t from = dpari_share_start(cursor, d, cursor->share[d]);
        int64_t to = dpari_share_start(cursor, d, cursor->share[d] + 1);
        cursor->cut[d] = dpari_most(cursor->there[d], from);
        cursor->cut_length[d] =
            dpari_least(cursor->there[d] + cursor->length[d], to) - cursor->cut[d];
    }
}

/* Determines which copies of one partial rank send the box, and in how many shares. */
static DPARI_COLD void dpari_begin_shares(dpar_redistribute_cursor *cursor)
{
    const dpar_mesh *mesh = &cursor->other.mesh;
    int32_t i, n, holder, number = 0, takers = 1;
    for (i = 0; i < mesh->axes; i++) {
        cursor->base[i] = cursor->peer[i]; /* 0 on axes that do not shard */
    }
    holder = dpar_mesh_group_member(mesh, cursor->part_from, dpar_mesh_rank(mesh, cursor->base),
                                    cursor->partial);
    (void)dpar_mesh_coords(mesh, holder, cursor->base);
    n = dpari_pool(cursor, cursor->base, cursor->rank, &cursor->copy);
    if (n > 1) {
        takers = dpari_takers(cursor, cursor->rank, n, &number);
    }
    dpar_layout_local(&cursor->other, holder, cursor->held, n > 1 ? cursor->lead : NULL);
    dpari_share_out(cursor, n, takers, number);
    cursor->copy += cursor->first;
    for (i = 0; i < cursor->mine.dims; i++) {
        cursor->share[i] = dpari_share_of(cursor, i, cursor->there[i]);
    }
}

/* Moves to the next share that overlaps the box, with the last dim fastest. Returns 0 at the end.
 */
static int dpari_next_share(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = cursor->mine.dims - 1; d >= 0; d--) {
        int64_t end = cursor->there[d] + cursor->length[d];
        int64_t next = dpari_share_start(cursor, d, cursor->share[d] + 1);
        if (next < end) {
            cursor->share[d] = dpari_share_of(cursor, d, next); /* skips empty ones */
            return 1;
        }
        cursor->share[d] = dpari_share_of(cursor, d, cursor->there[d]);
    }
    return 0;
}

static int dpari_next_receive(dpar_redistribute_cursor *cursor)
{
    int32_t d, number = 0;
    if (cursor->fresh) {
        cursor->fresh = 0;
        if (!dpari_walk_first(cursor)) {
            return 0;
        }
        dpari_begin_shares(cursor);
    } else if (!dpari_next_share(cursor)) {
        if (++cursor->partial == cursor->partials) {
            cursor->partial = 0;
            if (!dpari_walk_box(cursor)) {
                return 0;
            }
        }
        dpari_begin_shares(cursor);
    }
    for (d = 0; d < cursor->mine.dims; d++) {
        number = number * cursor->grid[d] + cursor->share[d];
    }
    cursor->now = dpar_mesh_group_member(&cursor->other.mesh, cursor->free_from,
                                         dpar_mesh_rank(&cursor->other.mesh, cursor->base),
                                         cursor->copy + number);
    cursor->op = cursor->partial == 0 ? DPAR_COPY : cursor->combine;
    dpari_cut_box(cursor);
    return 1;
}

/* ---- sending: to the ranks of the node one by one, then to all others ------------------------ */

/* Sets the range of the walk to the part of a box that the rank, copy `me` of n, sends to receiver
 * `number` of `takers`. Returns 1, or 0 if it sends nothing. */
static int dpari_range(dpar_redistribute_cursor *cursor, int32_t n, int32_t takers, int32_t number,
                       int32_t me)
{
    int32_t d, at;
    dpari_share_out(cursor, n, takers, number);
    at = me - cursor->first;
    if (at < 0) {
        return 0;
    }
    for (d = cursor->mine.dims - 1; d >= 0; d--) {
        int32_t i = at % cursor->grid[d];
        at /= cursor->grid[d];
        cursor->low[d] = dpari_share_start(cursor, d, i);
        cursor->high[d] = dpari_share_start(cursor, d, i + 1);
    }
    return at == 0;
}

/* Narrows the local ranges of `rank` in a layout to the indices between the first and the last one
 * of the ranks at coord[] in another layout. Returns the number of elements in them. */
static DPARI_COLD int64_t dpari_narrow(const dpar_layout *layout, int32_t rank,
                                       const dpar_layout *other, const int32_t *coord, int64_t *low,
                                       int64_t *high)
{
    int64_t size = 1, from, to;
    int32_t d;
    for (d = 0; d < layout->dims; d++) {
        if (!dpari_layout_span(other, coord, d, &from, &to)) {
            return 0;
        }
        low[d] = dpari_most(low[d], dpari_layout_before(layout, rank, d, from));
        high[d] = dpari_least(high[d], dpari_layout_before(layout, rank, d, to));
        if (low[d] >= high[d]) {
            return 0;
        }
        size = dpari_mul(size, high[d] - low[d], &size) ? size : INT64_MAX;
    }
    return size;
}

/* Turns the walk around: from a sender to the receiver `rank` of the other layout, or back. */
DPARI_STATIC_NOINLINE void dpari_turn_around(dpar_redistribute_cursor *cursor, int32_t rank)
{
    int32_t d;
    for (d = 0; d < (int32_t)sizeof(dpar_layout); d++) {
        char *mine = (char *)&cursor->mine + d, *other = (char *)&cursor->other + d, c = *mine;
        *mine = *other;
        *other = c;
    }
    cursor->sends = !cursor->sends;
    cursor->partial = 0;
    dpari_walk_over(cursor, rank);
    for (d = 0; d < cursor->mine.dims && !cursor->sends;
         d++) { /* dpari_range_to stored the range there */
        cursor->low[d] = cursor->at[d];
        cursor->high[d] = cursor->begin[d];
    }
}

/* Sets the range for rank q of the node: the part of this rank's share that overlaps the elements
 * of q. If the elements of q are scattered in it, sets taker to -1; the walk must then turn around
 * and go over the elements of q. Returns 1, or 0 if q receives nothing from this rank. */
static int dpari_range_to(dpar_redistribute_cursor *cursor, int32_t q)
{
    int32_t low, n, takers, number, me, d;
    int64_t here;
    if (!dpar_mesh_coords(&cursor->other.mesh, q, cursor->guest) || !dpari_takes(cursor, q)) {
        return 0;
    }
    n = dpari_pool(cursor, cursor->base, q, &low);
    takers = dpari_takers(cursor, q, n, &number);
    me = dpar_mesh_group_index(&cursor->mine.mesh, cursor->free_from, cursor->me) - low;
    if (!dpari_range(cursor, n, takers, number, me)) { /* also refuses q if its pool does not
                                                          include this rank */
        return 0;
    }
    here = dpari_narrow(&cursor->mine, cursor->rank, &cursor->other, cursor->guest, cursor->low,
                        cursor->high);
    dpar_layout_local(&cursor->other, q, cursor->begin, NULL);
    for (d = 0; d < cursor->mine.dims; d++) {
        cursor->at[d] = 0;
    }
    cursor->taker = dpari_narrow(&cursor->other, q, &cursor->mine, cursor->coord, cursor->at,
                                 cursor->begin) < here
                        ? -1
                        : 0;
    cursor->takers = 1;
    return here > 0;
}

/* Moves to the next rank of the node (or only this rank) that receives something. Returns 0 if
 * there is none left. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_next_mate(dpar_redistribute_cursor *cursor)
{
    while (cursor->phase == DPARI_TO_NODE) {
        if (cursor->mate == cursor->mates) {
            cursor->phase = DPARI_TO_ALL;
        } else if (dpari_range_to(cursor, cursor->node + cursor->mate++)) {
            return 1;
        }
    }
    return 0;
}

/* Moves to the next range, which may be empty, for receivers on any node: first for all that
 * receive whole boxes, then for the one or two that receive a share. Returns 0 at the end. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_next_phase(dpar_redistribute_cursor *cursor)
{
    int32_t me = dpar_mesh_group_index(&cursor->mine.mesh, cursor->free_from, cursor->rank);
    int32_t takers = dpar_mesh_group_size(&cursor->other.mesh, cursor->free_to), d;
    int32_t n = cursor->per_node < 0 ? 1 : cursor->copies, left = takers % n;
    if (cursor->phase == DPARI_TO_ALL) {
        cursor->phase = me < n ? DPARI_TO_ONE : DPARI_DONE;
        cursor->around = 1;
        cursor->taker = 0;
        cursor->takers = me < n ? takers / n : 0; /* every n-th receiver */
        for (d = 0; d < cursor->mine.dims; d++) {
            cursor->low[d] = 0;
            cursor->high[d] = cursor->held[d];
        }
        if (cursor->takers > 0) {
            return 1;
        }
    }
    while (left > 0 && (cursor->phase == DPARI_TO_ONE || cursor->phase == DPARI_TO_OTHER)) {
        int64_t first = (int64_t)me * left / n, last = ((int64_t)(me + 1) * left - 1) / n;
        cursor->around = 0;
        cursor->taker = takers - left + (int32_t)(cursor->phase == DPARI_TO_ONE ? first : last);
        cursor->takers = cursor->taker + 1;
        cursor->phase = cursor->phase == DPARI_TO_ONE && last > first ? DPARI_TO_OTHER : DPARI_DONE;
        if (dpari_range(cursor, n, takers, cursor->taker, me)) {
            return 1;
        }
    }
    return 0;
}

/* Returns the next receiver of the box, or -1 if it does not receive from this rank. */
static int32_t dpari_next_taker(dpar_redistribute_cursor *cursor)
{
    const dpar_mesh *mesh = &cursor->other.mesh;
    int32_t first = dpar_mesh_rank(mesh, cursor->peer), q, low,
            n; /* peer: 0 on axes that do not shard */
    int64_t number = cursor->copy++;
    if (cursor->phase == DPARI_TO_NODE) {
        q = cursor->node + cursor->mate - 1;
        return dpar_mesh_group_member(mesh, cursor->free_to, q, 0) == first ? q : -1;
    }
    if (cursor->around) { /* numbered as in dpari_share_out */
        int32_t me = dpar_mesh_group_index(&cursor->mine.mesh, cursor->free_from, cursor->rank);
        int32_t skew;
        n = cursor->per_node < 0 ? 1 : cursor->copies;
        skew = dpari_share_skew(n, dpar_mesh_group_size(mesh, cursor->free_to), (int32_t)number);
        number = number * n + (me + n - skew) % n;
    }
    q = dpar_mesh_group_member(mesh, cursor->free_to, first, (int32_t)number);
    if (cursor->copies == 1 || cursor->per_node < 0 ||
        dpari_pool(cursor, cursor->base, q, &low) == cursor->copies) {
        return q;
    }
    return -1; /* it has a nearer copy */
}

/* Moves to the next receiver that takes the box from this rank. Returns 0 at the end, and if the
 * walk must turn around. */
static int dpari_next_send(dpar_redistribute_cursor *cursor)
{
    for (;;) {
        if (cursor->fresh) {
            if ((!dpari_next_mate(cursor) && !dpari_next_phase(cursor)) || cursor->taker < 0) {
                return 0;
            }
            cursor->copy = cursor->taker;
            cursor->fresh = !dpari_walk_first(cursor);
            continue;
        }
        while (cursor->copy < cursor->takers) {
            cursor->now = dpari_next_taker(cursor);
            if (cursor->now >= 0) {
                int first =
                    dpar_mesh_group_index(&cursor->mine.mesh, cursor->part_from, cursor->rank) == 0;
                cursor->op = first ? DPAR_COPY : cursor->combine;
                return 1;
            }
        }
        cursor->copy = cursor->taker;
        cursor->fresh = !dpari_walk_box(cursor);
    }
}

/* Moves to the next transfer. A sender that walks over the elements of a receiver returns only the
 * transfers that it sends itself. */
static int dpari_walk_on(dpar_redistribute_cursor *cursor)
{
    while (cursor->state) {
        if (cursor->sends) {
            if (dpari_next_send(cursor)) {
                return 1;
            }
            cursor->state = cursor->taker < 0;
            if (cursor->state) {
                dpari_turn_around(cursor, cursor->node + cursor->mate - 1);
            }
        } else if (!dpari_next_receive(cursor)) {
            if (cursor->me < 0) {
                cursor->state = 0;
            } else {
                dpari_turn_around(cursor, cursor->me);
            }
        } else if (cursor->me < 0 || cursor->now == cursor->me) {
            return 1;
        }
    }
    return 0;
}

DPAR_API DPARI_COLD int dpar_redistribute_next(dpar_redistribute_cursor *cursor,
                                               dpar_transfer *transfer)
{
    int32_t d, turned;
    if (!dpari_walk_on(cursor)) {
        return 0;
    }
    turned = cursor->me >= 0 && !cursor->sends;
    dpari_zero(transfer, sizeof(*transfer));
    transfer->peer = turned ? cursor->rank : cursor->now;
    transfer->dims = cursor->mine.dims;
    transfer->op = cursor->op;
    for (d = 0; d < cursor->mine.dims; d++) {
        int64_t skip = cursor->sends ? 0 : cursor->cut[d] - cursor->there[d];
        transfer->extent[d] = cursor->sends ? cursor->length[d] : cursor->cut_length[d];
        transfer->mine[d] = (turned ? cursor->there[d] : cursor->at[d]) + skip;
        transfer->theirs[d] = (turned ? cursor->at[d] : cursor->there[d]) + skip;
        transfer->global[d] = cursor->begin[d] + skip;
    }
    return 1;
}
