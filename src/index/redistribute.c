/* SPDX-License-Identifier: MIT-0 */
#include "redistribute.h"

#include "../base/arith.h"

/* Where the walk of a sender is. */
enum { DPARI_TO_NODE, DPARI_TO_ALL, DPARI_TO_ONE, DPARI_DONE };

/* ---- checking ------------------------------------------------------------------------------- */

/* Is this Partial axis of `to` the same one in `from`? */
static int dpari_partial_stays(const dpar_layout *from, const dpar_layout *to, int32_t axis)
{
    return axis < from->mesh.axes && from->axis[axis].kind == DPAR_PARTIAL &&
           from->axis[axis].op == to->axis[axis].op &&
           from->mesh.axis[axis].size == to->mesh.axis[axis].size &&
           from->mesh.axis[axis].stride == to->mesh.axis[axis].stride &&
           from->mesh.offset == to->mesh.offset && from->mesh.axes == to->mesh.axes;
}

DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why)
{
    int32_t i, op = 0;
    if (from->dims != to->dims) {
        return dpari_say(DPAR_E_ARG, why, "an array of # dims cannot become one of #", from->dims,
                         to->dims, 0, 0);
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_say(DPAR_E_ARG, why, "dim # has # elements here and # there", i,
                             from->extent[i], to->extent[i], 0);
        }
    }
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PARTIAL && !dpari_partial_stays(from, to, i) &&
            (to->axis[i].op != DPAR_SUM ||
             (i < from->mesh.axes && from->axis[i].kind == DPAR_PARTIAL))) {
            return dpari_say(DPAR_E_ARG, why,
                             "axis #: only a sum can begin, and a partial one must stay the same",
                             i, 0, 0, 0);
        }
    }
    for (i = 0; i < from->mesh.axes; i++) { /* sums and maxima do not commute */
        if (from->axis[i].kind != DPAR_PARTIAL || from->mesh.axis[i].size == 1 ||
            (i < to->mesh.axes && to->axis[i].kind == DPAR_PARTIAL &&
             dpari_partial_stays(from, to, i))) {
            continue;
        }
        if (op != 0 && from->axis[i].op != op) {
            return dpari_say(DPAR_E_ARG, why,
                             "axis # is partial by op #, another by op #: reduce one at a time", i,
                             from->axis[i].op, op, 0);
        }
        op = from->axis[i].op;
    }
    return DPAR_OK;
}

/* ---- the sets of ranks ----------------------------------------------------------------------- */

static uint32_t dpari_axes_of(const dpar_layout *l, int32_t kind)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        set |= l->axis[i].kind == kind ? (uint32_t)1 << i : 0;
    }
    return set;
}

/* Members ascend when each stride passes what the smaller ones reach. */
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

/* The axis in `which` of the largest stride below `below`; -1: none. */
static int32_t dpari_largest_axis(const dpar_mesh *m, uint32_t which, int64_t below)
{
    int32_t i, best = -1;
    for (i = 0; i < m->axes; i++) {
        const dpar_axis *a = &m->axis[i];
        if ((which >> i & 1u) && a->size > 1 && a->stride < below &&
            (best < 0 || a->stride > m->axis[best].stride)) {
            best = i;
        }
    }
    return best;
}

/* How many members of base's group (base has coordinate 0 there) are ranks below x; nested. */
static int32_t dpari_members_below(const dpar_mesh *m, uint32_t which, int32_t base, int64_t x)
{
    int64_t rest = x - base, below = INT64_MAX;
    int32_t count = 0, inner = dpar_mesh_group_size(m, which), i;
    while (rest > 0 && (i = dpari_largest_axis(m, which, below)) >= 0) {
        const dpar_axis *a = &m->axis[i];
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

static const dpar_layout *dpari_from(const dpar_transfers *w)
{
    return w->sends ? &w->mine : &w->other;
}

static const dpar_layout *dpari_to(const dpar_transfers *w)
{
    return w->sends ? &w->other : &w->mine;
}

/* Does rank q hold what the ranks at `coord` (0 on replicated axes) hold? */
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

/* Which of the copies at `coord` may send to q: n of them from number *low on. The nearest. */
DPARI_APART int32_t dpari_pool(const dpar_transfers *w, const int32_t *coord, int32_t q,
                               int32_t *low)
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

/* The number of q among the receivers of its box that share a pool of n copies, and how many they
 * are: those of its node when the pool is its node's, else all. */
DPARI_APART int32_t dpari_takers(const dpar_transfers *w, int32_t q, int32_t n, int32_t *number)
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

/* Copies share the receivers of a box so that each sends as many elements: while there are as many
 * receivers as copies each takes one whole; of r that are left over, n / r copies serve one, each
 * with its share of what the copies hold. How many shares `number` takes, and from which copy on.
 */
static int32_t dpari_shares(int32_t n, int32_t takers, int32_t number, int32_t *copy)
{
    int32_t whole = takers / n * n, shares;
    if (number < whole) {
        *copy = number % n;
        return 1;
    }
    shares = n / (takers - whole);
    *copy = (number - whole) * shares;
    return shares;
}

static int32_t dpari_gcd(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Into how many parts the axes of a layout cut dim d. */
static int32_t dpari_parts_of(const dpar_layout *l, int32_t d)
{
    int32_t parts = 1, i;
    for (i = 0; i < l->mesh.axes; i++) {
        int cuts = l->axis[i].kind == DPAR_SHARD && l->axis[i].dim == d;
        parts *= cuts ? l->mesh.axis[i].size : 1;
    }
    return parts;
}

enum { DPARI_EVEN_ENOUGH = 64 }; /* indices a part: one more of them is not two in a hundred */

/* A grid of at most `shares` parts, none empty, over a local array of `from`: where the receivers'
 * boxes end (where those divide a dim they stay whole), then along the longest parts. */
static void dpari_share_grid(const dpar_layout *from, const dpar_layout *to, int32_t shares,
                             const int64_t *size, int32_t *grid)
{
    int32_t d;
    for (d = 0; d < from->dims; d++) {
        int32_t parts = dpari_parts_of(to, d);
        grid[d] = dpari_gcd(shares, parts / dpari_gcd(parts, dpari_parts_of(from, d)));
        if (size[d] % grid[d] != 0 && size[d] / grid[d] < DPARI_EVEN_ENOUGH) {
            grid[d] = 1;
        }
        shares /= grid[d];
    }
    while (shares > 1 && from->dims > 0) {
        int32_t longest = 0, more;
        for (d = 1; d < from->dims; d++) {
            longest = size[d] / grid[d] > size[longest] / grid[longest] ? d : longest;
        }
        more = (int32_t)dpari_least(shares, size[longest] / grid[longest]);
        if (more < 2) {
            return;
        }
        grid[longest] *= more;
        shares /= more;
    }
}

/* Where part i of n even ones begins, and which one has index x of them. */
static int64_t dpari_share_start(int64_t size, int32_t n, int32_t i)
{
    return size / n * i + dpari_least(i, size % n);
}

static int32_t dpari_share_of(int64_t size, int32_t n, int64_t x)
{
    int64_t each = size / n, longer = size % n, beyond = longer * (each + 1);
    return (int32_t)(x < beyond ? x / (each + 1) : longer + (x - beyond) / each);
}

/* ---- the walk ------------------------------------------------------------------------------- */

/* The piece of dim d that begins at at[d]: as long as both sides have it in a row. */
static void dpari_walk_piece(dpar_transfers *w, int32_t d)
{
    int64_t here, there;
    w->begin[d] = dpar_layout_global(&w->mine, w->rank, d, w->at[d], &here);
    (void)dpar_layout_find(&w->other, d, w->begin[d], w->peer, &w->there[d], &there);
    w->length[d] = dpari_least(w->high[d] - w->at[d], dpari_least(here, there));
}

/* To the first box of the range; 0 when that is empty. */
static int dpari_walk_first(dpar_transfers *w)
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

/* The next box; 0 at the end. */
static int dpari_walk_box(dpar_transfers *w)
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

/* A Partial axis of `to` that is not one of `from`: coordinate 0 alone receives. */
static int dpari_takes(const dpar_transfers *w, int32_t rank)
{
    const dpar_layout *from = dpari_from(w), *to = dpari_to(w);
    int32_t at[DPAR_MAX_AXES], i;
    (void)dpar_mesh_coords(&to->mesh, rank, at);
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PARTIAL && at[i] != 0 && !dpari_partial_stays(from, to, i)) {
            return 0;
        }
    }
    return 1;
}

/* A fully replicated source on the receivers' ranks moves nothing: what is sent stays. */
static int dpari_only_kept(const dpar_layout *from, const dpar_layout *to)
{
    return dpari_axes_of(from, DPAR_SHARD) == 0 && dpari_axes_of(from, DPAR_PARTIAL) == 0 &&
           from->mesh.offset <= to->mesh.offset && from->mesh.size >= to->mesh.size &&
           from->mesh.axes > 0 && dpar_mesh_same(&from->mesh, &to->mesh);
}

/* Which ranks a sender serves one by one: this one, and those of its node that are of `to` when not
 * all of its copies lie there. */
static void dpari_walk_node(dpar_transfers *w)
{
    const dpar_mesh *m = &w->mine.mesh, *to = &w->other.mesh;
    int64_t last = to->offset, node, end;
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
    node = dpari_most(node, to->offset);
    w->node = (int32_t)node;
    w->mates = (int32_t)dpari_most(0, dpari_least(end, last + 1) - node);
}

DPAR_API dpar_status dpar_transfers_begin(dpar_transfers *w, const dpar_layout *from,
                                          const dpar_layout *to, int32_t rank, int32_t direction,
                                          int32_t per_node, dpar_why *why)
{
    dpar_status st = dpar_redistribute_check(from, to, why);
    int32_t i;
    uint32_t stays = 0;
    if (st != DPAR_OK) {
        return st;
    }
    if (per_node < DPAR_PRIMARY || (direction != DPAR_RECEIVES && direction != DPAR_SENDS)) {
        return dpari_say(DPAR_E_ARG, why, "# ranks a node, direction #", per_node, direction, 0, 0);
    }
    dpari_zero(w, sizeof(*w));
    w->rank = rank;
    w->keep = direction == DPAR_SENDS && per_node >= 0 && dpari_only_kept(from, to);
    w->sends = direction == DPAR_SENDS && !w->keep;
    w->mine = w->sends ? *from : *to;
    w->other = w->sends ? *to : *from;
    w->per_node = per_node;
    if (dpari_mesh_nested(&from->mesh)) { /* 1: nodes count; 2: and their takers are in a row */
        w->nested = 1 + dpari_mesh_nested(&to->mesh);
    }
    for (i = 0; i < to->mesh.axes; i++) {
        stays |= to->axis[i].kind == DPAR_PARTIAL && dpari_partial_stays(from, to, i)
                     ? (uint32_t)1 << i
                     : 0;
    }
    w->free_from = dpari_axes_of(from, DPAR_REPLICATE);
    w->part_from = dpari_axes_of(from, DPAR_PARTIAL) & ~stays;
    w->free_to = dpari_axes_of(to, DPAR_REPLICATE);
    for (i = 0; i < from->mesh.axes; i++) { /* sums and maxima do not meet: checked */
        if (w->part_from >> i & 1u && from->mesh.axis[i].size > 1) {
            w->combine = from->axis[i].op;
        }
    }
    w->copies = dpar_mesh_group_size(&from->mesh, w->free_from);
    w->partials = dpar_mesh_group_size(&from->mesh, w->part_from);
    w->state =
        dpar_mesh_coords(&w->mine.mesh, rank, w->coord) && (w->sends || dpari_takes(w, rank));
    for (i = 0; i < w->mine.mesh.axes && w->state; i++) { /* sums that stay: the same coordinate */
        w->peer[i] = stays >> i & 1u ? w->coord[i] : 0;
        w->base[i] = w->free_from >> i & 1u ? 0 : w->coord[i];
    }
    dpar_layout_local(&w->mine, rank, w->high, NULL);
    for (i = 0; i < w->mine.dims; i++) {
        w->size[i] = w->high[i];
    }
    w->phase = w->copies == 1 || per_node < 0 ? DPARI_TO_ALL : DPARI_TO_NODE;
    w->fresh = 1;
    dpari_walk_node(w);
    return DPAR_OK;
}

/* ---- receiving: the boxes, from each partial rank, from each copy that has a share ---------- */

/* The share of the box that lies in part share[] of the copies' grid. */
static void dpari_cut_box(dpar_transfers *w)
{
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t from = dpari_share_start(w->held[d], w->grid[d], w->share[d]);
        int64_t to = dpari_share_start(w->held[d], w->grid[d], w->share[d] + 1);
        w->cut[d] = dpari_most(w->there[d], from);
        w->cut_length[d] = dpari_least(w->there[d] + w->length[d], to) - w->cut[d];
    }
}

/* Who sends the box: the copies of one partial rank, and in how many shares. */
static void dpari_begin_shares(dpar_transfers *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t i, rank, n, number, shares = 1, copy = 0;
    for (i = 0; i < m->axes; i++) {
        w->base[i] = w->peer[i]; /* 0 on axes that do not shard */
    }
    rank = dpar_mesh_group_member(m, w->part_from, dpar_mesh_rank(m, w->base), w->partial);
    (void)dpar_mesh_coords(m, rank, w->base);
    n = dpari_pool(w, w->base, w->rank, &w->copy);
    if (n > 1) {
        int32_t takers = dpari_takers(w, w->rank, n, &number);
        shares = dpari_shares(n, takers, number, &copy);
    }
    w->copy += copy;
    dpar_layout_local(&w->other, rank, w->held, NULL);
    dpari_share_grid(&w->other, &w->mine, shares, w->held, w->grid);
    for (i = 0; i < w->mine.dims; i++) {
        w->share[i] = dpari_share_of(w->held[i], w->grid[i], w->there[i]);
    }
}

/* The next share that meets the box, the last dim fastest; 0 at the end. */
static int dpari_next_share(dpar_transfers *w)
{
    int32_t d;
    for (d = w->mine.dims - 1; d >= 0; d--) {
        int64_t end = w->there[d] + w->length[d];
        if (dpari_share_start(w->held[d], w->grid[d], w->share[d] + 1) < end) {
            w->share[d]++;
            return 1;
        }
        w->share[d] = dpari_share_of(w->held[d], w->grid[d], w->there[d]);
    }
    return 0;
}

static int dpari_next_receive(dpar_transfers *w)
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

/* The range of the walk: part `share` of the grid of `shares` over what this rank holds; 0: there
 * is no such part. */
static int dpari_range(dpar_transfers *w, int32_t shares, int32_t share)
{
    int32_t d;
    dpari_share_grid(&w->mine, &w->other, shares, w->size, w->grid);
    for (d = w->mine.dims - 1; d >= 0; d--) {
        int32_t at = share % w->grid[d];
        share /= w->grid[d];
        w->low[d] = dpari_share_start(w->size[d], w->grid[d], at);
        w->high[d] = dpari_share_start(w->size[d], w->grid[d], at + 1);
    }
    return share == 0;
}

/* The range for one rank of the node: this rank's share, as far as it reaches what q takes. */
static int dpari_range_to(dpar_transfers *w, int32_t q)
{
    int32_t coord[DPAR_MAX_AXES], low, n, takers, number, copy, shares, d;
    if (!dpar_mesh_coords(&w->other.mesh, q, coord) || !dpari_takes(w, q)) {
        return 0;
    }
    n = dpari_pool(w, w->base, q, &low);
    takers = dpari_takers(w, q, n, &number);
    shares = n > 1 ? dpari_shares(n, takers, number, &copy) : 1;
    low += n > 1 ? copy : 0;
    copy = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->rank) - low;
    if (n == w->copies || copy < 0 || copy >= shares || !dpari_range(w, shares, copy)) {
        return 0; /* no copy is near: q is among all others */
    }
    for (d = 0; d < w->mine.dims; d++) {
        int64_t from, to;
        if (!dpar_layout_span(&w->other, coord, d, &from, &to)) {
            return 0;
        }
        w->low[d] = dpari_most(w->low[d], dpar_layout_before(&w->mine, w->rank, d, from));
        w->high[d] = dpari_least(w->high[d], dpar_layout_before(&w->mine, w->rank, d, to));
    }
    w->taker = 0;
    w->takers = 1;
    return 1;
}

/* To the next target that has a range, perhaps an empty one: ranks of the node (or this one alone),
 * then all receivers that take whole boxes, then the one that takes a share. 0 at the end. */
DPARI_APART int dpari_next_phase(dpar_transfers *w)
{
    int32_t me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->rank);
    int32_t takers = dpar_mesh_group_size(&w->other.mesh, w->free_to), n = w->copies, shares;
    while (w->phase == DPARI_TO_NODE) {
        if (w->mate == w->mates) {
            w->phase = DPARI_TO_ALL;
        } else if (dpari_range_to(w, w->node + w->mate++)) {
            return 1;
        }
    }
    if (w->phase == DPARI_TO_ALL) {
        w->phase = DPARI_TO_ONE;
        n = w->per_node < 0 ? 1 : n;
        w->taker = w->per_node < 0 ? (me > 0 ? takers : 0) : me;
        w->step = n;
        w->takers = takers / n * n;
        if (w->taker < w->takers && dpari_range(w, 1, 0)) {
            return 1;
        }
    }
    if (w->phase == DPARI_TO_ONE && w->per_node >= 0 && takers % n > 0) {
        w->phase = DPARI_DONE;
        shares = n / (takers % n);
        w->taker = takers / n * n + me / shares;
        w->step = w->takers = takers;
        return w->taker < takers && dpari_range(w, shares, me % shares);
    }
    return 0;
}

/* The next receiver of the box; -1: not this one. */
static int32_t dpari_next_taker(dpar_transfers *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t first = dpar_mesh_rank(m, w->peer), q, low; /* peer: 0 on axes that do not shard */
    if (w->phase == DPARI_TO_NODE) {
        q = w->node + w->mate - 1;
        w->copy = w->takers;
        return dpar_mesh_group_member(m, w->free_to, q, 0) == first ? q : -1;
    }
    q = dpar_mesh_group_member(m, w->free_to, first, w->copy);
    w->copy += (int32_t)dpari_least(w->step, w->takers - w->copy);
    /* who has a copy nearer takes it from there */
    return w->copies == 1 || w->per_node < 0 || dpari_pool(w, w->base, q, &low) == w->copies ? q
                                                                                             : -1;
}

/* The box to each of the receivers that take it from this rank. */
static int dpari_next_send(dpar_transfers *w)
{
    for (;;) {
        if (w->fresh) {
            if (!dpari_next_phase(w)) {
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

static int dpari_walk_on(dpar_transfers *w)
{
    w->state = w->state && (w->sends ? dpari_next_send(w) : dpari_next_receive(w));
    return w->state;
}

DPAR_API int dpar_transfers_next(dpar_transfers *w, dpar_transfer *t)
{
    int32_t d;
    if (!dpari_walk_on(w)) {
        return 0;
    }
    dpari_zero(t, sizeof(*t));
    t->peer = w->now;
    t->dims = w->mine.dims;
    t->op = w->op;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t skip = w->sends ? 0 : w->cut[d] - w->there[d];
        t->extent[d] = w->sends ? w->length[d] : w->cut_length[d];
        t->mine[d] = w->keep ? w->there[d] + skip : w->at[d] + skip;
        t->theirs[d] = w->keep ? w->at[d] + skip : w->there[d] + skip;
        t->global[d] = w->begin[d] + skip;
    }
    return 1;
}

static void dpari_add_most(int64_t *sum, int64_t n)
{
    *sum = n > INT64_MAX - *sum ? INT64_MAX : *sum + n;
}

/* Adds the transfer that was reached. */
DPARI_APART void dpari_walk_add(const dpar_transfers *w, dpar_transfer_totals *sum)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        n = dpari_mul(n, w->sends ? w->length[d] : w->cut_length[d], &n) ? n : INT64_MAX;
    }
    sum->transfers++;
    if (w->now == w->rank) {
        dpari_add_most(&sum->kept, n);
    } else if (w->per_node > 0 && w->now / w->per_node == w->rank / w->per_node) {
        dpari_add_most(&sum->near_by, n);
    } else {
        dpari_add_most(&sum->away, n);
    }
}

DPAR_API void dpar_transfers_total(dpar_transfers *w, dpar_transfer_totals *sum)
{
    dpari_zero(sum, sizeof(*sum));
    while (dpari_walk_on(w)) {
        dpari_walk_add(w, sum);
    }
}

DPAR_API int64_t dpar_redistribute_peak(const dpar_layout *from, const dpar_layout *to,
                                        int32_t rank)
{
    int64_t a = dpar_layout_numel(from, rank), b = dpar_layout_numel(to, rank);
    return a < 0 || b < 0 || a > INT64_MAX - b ? -1 : a + b;
}

/* ---- reduce first --------------------------------------------------------------------------- */

/* The axes of a set cut the longest dim, after all that cuts it already. */
static void dpari_put_on_longest(const dpar_layout *l, uint32_t set, dpar_layout *out)
{
    int32_t i, longest = 0, n = 0, pass;
    int8_t order[DPAR_MAX_AXES];
    if (out != l) {
        *out = *l;
    }
    for (i = 1; i < l->dims; i++) {
        longest = l->extent[i] > l->extent[longest] ? i : longest;
    }
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < l->mesh.axes; i++) {
            int32_t axis = out->order[i];
            if ((int32_t)(set >> axis & 1u) == pass) {
                order[n++] = (int8_t)axis;
                out->axis[axis] = pass ? dpar_shard(longest) : out->axis[axis];
            }
        }
    }
    for (i = 0; i < n; i++) {
        out->order[i] = order[i];
    }
}

DPAR_API dpar_status dpar_redistribute_reduced(const dpar_layout *from, const dpar_layout *to,
                                               dpar_layout *middle)
{
    uint32_t reduces = 0;
    int32_t i;
    for (i = 0; i < from->mesh.axes; i++) {
        if (from->axis[i].kind == DPAR_PARTIAL && from->mesh.axis[i].size > 1 &&
            !(i < to->mesh.axes && to->axis[i].kind == DPAR_PARTIAL)) {
            reduces |= (uint32_t)1 << i;
        }
    }
    if (reduces == 0 || from->dims == 0 || dpar_layout_copies(to) < 2) {
        return DPAR_OK; /* nobody needs the same sum twice */
    }
    dpari_put_on_longest(from, reduces, middle);
    return DPAR_MORE;
}

DPAR_API dpar_status dpar_redistribute_spread(const dpar_layout *to, dpar_layout *middle)
{
    if (dpar_layout_copies(to) < 2 || to->dims == 0) {
        return DPAR_OK;
    }
    dpari_put_on_longest(to, dpari_axes_of(to, DPAR_REPLICATE), middle);
    return DPAR_MORE;
}
