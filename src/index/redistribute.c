/* SPDX-License-Identifier: MIT-0 */
#include "redistribute.h"

#include "../base/arith.h"

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

/* The number of a part of a dim: its coordinates on the axes that cut the dim, the first major. */
static int64_t dpari_part_number(const dpar_layout *l, int32_t dim, const int32_t *coord)
{
    int64_t number = 0;
    int32_t k;
    for (k = 0; k < l->mesh.axes; k++) {
        const dpar_placement *p = &l->axis[l->order[k]];
        if (p->kind == DPAR_SHARD && p->dim == dim) {
            number = number * l->mesh.axis[l->order[k]].size + coord[l->order[k]];
        }
    }
    return number;
}

/* The parts of `to` that the part of `from` at `coord` meets in a dim, from its first index to its
 * last: the first, and how many (all of them when they go round). */
static void dpari_parts_met(const dpar_layout *from, const dpar_layout *to, int32_t dim,
                            const int32_t *coord, int64_t *first, int64_t *parts)
{
    int32_t there[DPAR_MAX_AXES], k;
    int64_t low, high;
    *first = 0;
    *parts = 1;
    if (!dpar_layout_span(from, coord, dim, &low, &high)) {
        return;
    }
    (void)dpar_layout_find(to, dim, low, there, NULL, NULL);
    *first = dpari_part_number(to, dim, there);
    (void)dpar_layout_find(to, dim, high - 1, there, NULL, NULL);
    *parts = dpari_part_number(to, dim, there) - *first + 1;
    if (*parts < 1) {
        *first = 0;
        for (*parts = 1, k = 0; k < to->mesh.axes; k++) {
            int cuts = to->axis[k].kind == DPAR_SHARD && to->axis[k].dim == dim;
            *parts *= cuts ? to->mesh.axis[k].size : 1;
        }
    }
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

/* The turn of receiver q among all that take something from the copies at `coord`. */
static int64_t dpari_turn(const dpar_transfers *w, const int32_t *coord, int32_t q)
{
    const dpar_layout *to = dpari_to(w);
    const int32_t *at = w->sends ? w->peer : w->coord; /* q's, but for the replicated axes */
    int64_t turn = 0, first, parts;
    int32_t d;
    for (d = 0; d < to->dims; d++) {
        if (w->sends) {
            first = w->first[d];
            parts = w->parts[d];
        } else {
            dpari_parts_met(&w->other, to, d, coord, &first, &parts);
        }
        turn = (turn % INT32_MAX) * (parts % INT32_MAX) +
               dpari_most(0, dpari_part_number(to, d, at) - first);
    }
    return turn % INT32_MAX * dpar_mesh_group_size(&to->mesh, w->free_to) +
           dpar_mesh_group_index(&to->mesh, w->free_to, q);
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

/* The rank that sends to q what the copies at `coord` (0 on replicated axes) hold. */
static int32_t dpari_sender(const dpar_transfers *w, const int32_t *coord, int32_t q)
{
    const dpar_mesh *m = &dpari_from(w)->mesh;
    int32_t low, n = dpari_pool(w, coord, q, &low);
    low += n > 1 ? (int32_t)(dpari_turn(w, coord, q) % n) : 0;
    return dpar_mesh_group_member(m, w->free_from, dpar_mesh_rank(m, coord), low);
}

/* ---- the walk ------------------------------------------------------------------------------- */

/* The piece of dim d that begins at at[d]: as long as both sides have it in a row. */
static void dpari_walk_piece(dpar_transfers *w, int32_t d)
{
    int64_t here, there;
    w->begin[d] = dpar_layout_global(&w->mine, w->rank, d, w->at[d], &here);
    (void)dpar_layout_find(&w->other, d, w->begin[d], w->peer, &w->there[d], &there);
    w->length[d] = dpari_least(here, there);
}

/* The next box; 0 at the end. */
static int dpari_walk_box(dpar_transfers *w)
{
    int32_t d;
    for (d = w->mine.dims - 1; d >= 0; d--) {
        w->at[d] += w->length[d];
        if (w->at[d] < w->size[d]) {
            dpari_walk_piece(w, d);
            return 1;
        }
        w->at[d] = 0;
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

static dpar_status dpari_walk_sizes(dpar_transfers *w)
{
    int32_t d;
    dpar_layout_local(&w->mine, w->rank, w->size, NULL);
    for (d = 0; d < w->mine.dims; d++) {
        if (w->size[d] == 0) {
            return DPAR_DONE;
        }
    }
    for (d = 0; d < w->mine.dims; d++) {
        dpari_walk_piece(w, d);
        if (w->sends && w->copies > 1) {
            dpari_parts_met(&w->mine, &w->other, d, w->coord, &w->first[d], &w->parts[d]);
        }
    }
    return DPAR_OK;
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
    w->state = w->state && dpari_walk_sizes(w) == DPAR_OK;
    return DPAR_OK;
}

/* The box from each of the partial ranks in turn. */
static int dpari_next_receive(dpar_transfers *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t i, rank;
    if (w->partial == w->partials) {
        w->partial = 0;
        if (!dpari_walk_box(w)) {
            return 0;
        }
    }
    for (i = 0; i < m->axes; i++) {
        w->base[i] = w->peer[i]; /* 0 on axes that do not shard */
    }
    rank = dpar_mesh_group_member(m, w->part_from, dpar_mesh_rank(m, w->base), w->partial);
    (void)dpar_mesh_coords(m, rank, w->base);
    w->now = dpari_sender(w, w->base, w->rank);
    w->op = w->partial == 0 ? DPAR_COPY : w->combine;
    w->partial++;
    return 1;
}

/* The next receiver of the box, from number j of their group on, that may take it from this rank:
 * itself, one on its node, or one whose turn among the copies is this one's; `first` is number 0.
 */
DPARI_APART int32_t dpari_next_taker(const dpar_transfers *w, const int32_t *coord, int32_t first,
                                     int64_t turn, int32_t j)
{
    const dpar_mesh *from = &w->mine.mesh, *to = &w->other.mesh;
    int32_t n = dpar_mesh_group_size(to, w->free_to),
            self = dpar_mesh_group_index(to, w->free_to, w->rank);
    int64_t best = n, low, high;
    if (w->copies == 1 || (w->per_node > 0 && w->nested == 1)) {
        return j; /* any of them may */
    }
    if (w->per_node < 0) {
        return dpar_mesh_rank(from, coord) == w->rank ? j : n;
    }
    turn = dpar_mesh_group_index(from, w->free_from, w->rank) - turn - j;
    best = dpari_least(best, j + (turn - dpari_floor_div(turn, w->copies) * w->copies));
    if (self >= j) {
        best = dpari_least(best, self);
    }
    if (w->per_node > 0 && w->nested == 2) {
        low = w->rank / w->per_node * w->per_node;
        high = dpari_members_below(to, w->free_to, first, low + w->per_node);
        low = dpari_members_below(to, w->free_to, first, low);
        best = j < high ? dpari_least(best, dpari_most(j, low)) : best;
    }
    return (int32_t)best;
}

/* The box to each of the receivers that take it from this rank. */
static int dpari_next_send(dpar_transfers *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t i, q, first, n = dpar_mesh_group_size(m, w->free_to);
    int64_t turn;
    for (;;) {
        first = dpar_mesh_rank(m, w->peer); /* 0 on axes that do not shard */
        turn = w->copies > 1 && w->per_node >= 0 ? dpari_turn(w, w->base, first) : 0;
        w->copy = dpari_next_taker(w, w->base, first, turn, w->copy);
        if (w->copy >= n) {
            w->copy = 0;
            if (!dpari_walk_box(w)) {
                return 0;
            }
            continue;
        }
        q = dpar_mesh_group_member(m, w->free_to, first, w->copy++);
        if (dpari_sender(w, w->base, q) == w->rank) {
            i = dpar_mesh_group_index(&w->mine.mesh, w->part_from, w->rank);
            w->now = q;
            w->op = i == 0 ? DPAR_COPY : w->combine;
            return 1;
        }
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
        t->extent[d] = w->length[d];
        t->mine[d] = w->keep ? w->there[d] : w->at[d];
        t->theirs[d] = w->keep ? w->at[d] : w->there[d];
        t->global[d] = w->begin[d];
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
        n = dpari_mul(n, w->length[d], &n) ? n : INT64_MAX;
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
