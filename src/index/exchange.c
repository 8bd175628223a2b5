/* SPDX-License-Identifier: MIT-0 */
/* Problems that need all messages or boxes at once. Rounds are an edge colouring of a bipartite
 * graph: edges are added one by one, and if no round is free at both ends, an alternating path of
 * two rounds is exchanged. The assignment of parts to ranks uses shortest augmenting paths.
 * Coverage sorts the boxes along the dim in which they are thinnest and compares neighbours. */
#include "exchange.h"

#include "inner.h"

/* ---- rounds --------------------------------------------------------------------------------- */

/* The most that any rank sends or any receives. */
static dpar_status dpari_rounds_count(const dpar_exchange *e, int32_t *rounds, dpar_why *why)
{
    int64_t *sent = e->scratch, *received = sent + e->senders, most = 0, k;
    dpari_zero(sent, sizeof(*sent) * ((size_t)e->senders + (size_t)e->receivers));
    for (k = 0; k < e->n; k++) {
        const dpar_edge *m = &e->edge[k];
        if (m->from < 0 || m->from >= e->senders || m->to < 0 || m->to >= e->receivers) {
            return dpari_say(DPAR_E_ARG, why, "message # goes from # to #: that is outside", k,
                             m->from, m->to, 0);
        }
        most = dpari_most(most, dpari_most(++sent[m->from], ++received[m->to]));
    }
    if (most > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "# messages of one rank", most, 0, 0, 0);
    }
    *rounds = (int32_t)most;
    return DPAR_OK;
}

/* The first round in which a rank is idle; `rounds` when there is none. A row holds, for each
 * round, one more than the edge that the rank has then. */
static int32_t dpari_idle(const int64_t *row, int32_t rounds)
{
    int32_t c = 0;
    while (c < rounds && row[c] != 0) {
        c++;
    }
    return c;
}

/* Puts edge k into round a. Its sender is idle in a, its receiver in b; who has a at the receiver
 * moves to b, who has b at the other end of that one moves to a, and so on: the graph has two
 * sides, so the path never comes back to the sender. */
static void dpari_color_edge(const dpar_edge *edge, int64_t k, int32_t senders, int32_t rounds,
                             int64_t *table, int32_t *round, int32_t a, int32_t b)
{
    int64_t *row = table + ((int64_t)senders + edge[k].to) * rounds;
    int receiving = 1;
    table[(int64_t)edge[k].from * rounds + a] = k + 1;
    for (;;) {
        int64_t displaced = row[a];
        int32_t swap = a;
        row[a] = k + 1;
        round[k] = a;
        if (displaced == 0) {
            return;
        }
        row[b] = displaced;
        k = displaced - 1;
        receiving = !receiving;
        row = table + (receiving ? (int64_t)senders + edge[k].to : (int64_t)edge[k].from) * rounds;
        row[a] = 0;
        a = b;
        b = swap;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_exchange_rounds(const dpar_exchange *e, int32_t *rounds,
                                                     int32_t *round, dpar_why *why)
{
    int64_t ranks = (int64_t)e->senders + e->receivers, cells, k;
    int32_t needed = 0;
    dpar_status st;
    if (e->n < 0 || e->senders < 0 || e->receivers < 0) {
        return dpari_say(DPAR_E_ARG, why, "# messages from # to # ranks", e->n, e->senders,
                         e->receivers, 0);
    }
    if (e->cells < ranks) {
        return dpari_say(DPAR_E_ROOM, why, "scratch of # numbers for # senders and # receivers",
                         e->cells, e->senders, e->receivers, 0);
    }
    st = dpari_rounds_count(e, &needed, why);
    if (st != DPAR_OK) {
        return st;
    }
    *rounds = needed;
    if (round == NULL) {
        return DPAR_OK;
    }
    if (!dpari_mul(ranks, needed, &cells) || cells > e->cells) {
        return dpari_say(DPAR_E_ROOM, why, "# rounds of # ranks: scratch of # numbers is too small",
                         needed, ranks, e->cells, 0);
    }
    for (k = 0; k < cells; k++) {
        e->scratch[k] = 0;
    }
    for (k = 0; k < e->n; k++) {
        const dpar_edge *m = &e->edge[k];
        int32_t a = dpari_idle(e->scratch + (int64_t)m->from * needed, needed);
        int32_t b = dpari_idle(e->scratch + ((int64_t)e->senders + m->to) * needed, needed);
        dpari_color_edge(e->edge, k, e->senders, needed, e->scratch, round, a, b);
    }
    return DPAR_OK;
}

/* ---- assigning ------------------------------------------------------------------------------ */

/* Shortest augmenting paths (Jonker and Volgenant 1987), one part at a time. Parts and ranks count
 * from 1; 0 is the part being placed. Potentials u (parts), v (ranks) keep every reduced cost
 * cost - u - v >= 0, 0 where matched. */
typedef struct dpari_match {
    int32_t n;
    const int64_t *kept;
    int64_t *u, *v, *near_by, *state; /* state[r]: part of rank r, times 2, plus 1 when visited */
    int32_t *way;                     /* the rank before r on the path: rank_of while it works */
} dpari_match;

static int64_t dpari_match_part(const dpari_match *m, int32_t rank)
{
    return m->state[rank] / 2;
}

/* Extends the tree by the nearest rank outside; returns it. */
static int32_t dpari_match_step(dpari_match *m, int32_t rank)
{
    int64_t part = dpari_match_part(m, rank), best = INT64_MAX;
    int32_t r, next = 0;
    m->state[rank] |= 1;
    for (r = 1; r <= m->n; r++) {
        int64_t cost;
        if (m->state[r] & 1) {
            continue;
        }
        cost = -m->kept[(int64_t)(r - 1) * m->n + part - 1] - m->u[part] - m->v[r];
        if (cost < m->near_by[r]) {
            m->near_by[r] = cost;
            m->way[r - 1] = rank;
        }
        if (m->near_by[r] < best) {
            best = m->near_by[r];
            next = r;
        }
    }
    for (r = 0; r <= m->n; r++) {
        if (m->state[r] & 1) {
            m->u[dpari_match_part(m, r)] += best;
            m->v[r] -= best;
        } else {
            m->near_by[r] -= best;
        }
    }
    return next;
}

static void dpari_match_place(dpari_match *m, int32_t part)
{
    int32_t r, rank = 0, before;
    m->state[0] = 2 * (int64_t)part;
    for (r = 0; r <= m->n; r++) {
        m->near_by[r] = INT64_MAX / 2;
        m->state[r] &= ~(int64_t)1;
    }
    do {
        rank = dpari_match_step(m, rank);
    } while (dpari_match_part(m, rank) != 0);
    for (; rank != 0; rank = before) { /* along the path each rank takes the part before */
        before = m->way[rank - 1];
        m->state[rank] = 2 * dpari_match_part(m, before);
    }
}

DPARI_API dpar_status dpari_exchange_assign(int32_t n, const int64_t *kept, int32_t *rank_of,
                                            int64_t *scratch, dpar_why *why)
{
    dpari_match m;
    int64_t k;
    int32_t i;
    if (n < 0 || n > 32768) {
        return dpari_say(DPAR_E_ARG, why, "# parts: 0 to 32768 can be matched", n, 0, 0, 0);
    }
    for (k = 0; k < (int64_t)n * n; k++) {
        if (kept[k] < 0 || kept[k] > INT64_C(1) << 46) {
            return dpari_say(DPAR_E_RANGE, why, "rank # keeps # of part #: 0 to 2^46 are possible",
                             k / n, kept[k], k % n, 0);
        }
    }
    m.n = n;
    m.kept = kept;
    m.u = scratch;
    m.v = scratch + n + 1;
    m.near_by = scratch + 2 * ((int64_t)n + 1);
    m.state = scratch + 3 * ((int64_t)n + 1);
    m.way = rank_of;
    for (k = 0; k < 4 * ((int64_t)n + 1); k++) {
        scratch[k] = 0;
    }
    for (i = 1; i <= n; i++) {
        dpari_match_place(&m, i);
    }
    for (i = 1; i <= n; i++) {
        rank_of[dpari_match_part(&m, i) - 1] = i - 1;
    }
    return DPAR_OK;
}

/* ---- coverage ------------------------------------------------------------------------------- */

static int dpari_box_empty(const dpar_box *b)
{
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        if (b->hi[d] <= b->lo[d]) {
            return 1;
        }
    }
    return 0;
}

/* Heap sort of order[] by lo[dim]. */
static void dpari_sort_boxes(const dpar_box *box, int32_t n, int32_t dim, int32_t *order)
{
    int32_t start = n / 2, end = n;
    while (end > 1) {
        int32_t at, child, value;
        if (start > 0) {
            value = order[--start];
        } else {
            value = order[--end];
            order[end] = order[0];
        }
        for (at = start; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && box[order[child]].lo[dim] < box[order[child + 1]].lo[dim]) {
                child++;
            }
            if (box[order[child]].lo[dim] <= box[value].lo[dim]) {
                break;
            }
            order[at] = order[child];
        }
        order[at] = value;
    }
}

/* The dim along which the boxes are thinnest, in thousandths of the extent, on average. */
static int32_t dpari_thin_dim(int32_t dims, const int64_t *extent, const dpar_box *box,
                              const int32_t *order, int32_t n)
{
    int64_t least = INT64_MAX;
    int32_t d, k, best = 0;
    for (d = 0; d < dims; d++) {
        int64_t unit = dpari_most(1, extent[d] / 1000), sum = 0;
        for (k = 0; k < n; k++) {
            sum += (box[order[k]].hi[d] - box[order[k]].lo[d]) / unit;
        }
        if (sum < least) {
            least = sum;
            best = d;
        }
    }
    return best;
}

/* The first element, the last dim fastest, that no box has. A row of the last dim looks the same
 * until the first of the boxes that cross it ends: rows in between are passed over, and so on
 * outwards. */
static void dpari_first_missing(int32_t dims, const int64_t *extent, const dpar_box *box,
                                const int32_t *order, int32_t n, int64_t *at)
{
    int64_t next[DPAR_MAX_DIMS];
    int32_t d, k, in;
    for (d = 0; d < dims; d++) {
        at[d] = 0;
        next[d] = INT64_MAX;
    }
    for (;;) {
        for (k = 0, in = 0; k < n && !in; k++) {
            const dpar_box *b = &box[order[k]];
            for (d = 0, in = 1; d < dims; d++) {
                in = in && at[d] >= b->lo[d] && at[d] < b->hi[d];
            }
            for (d = 0; d < dims && in; d++) {
                next[d] = dpari_least(next[d], b->hi[d]);
            }
        }
        if (!in) {
            return;
        }
        for (d = dims - 1; d >= 0; d--) {
            at[d] = next[d];
            next[d] = INT64_MAX;
            if (at[d] < extent[d]) {
                break;
            }
            at[d] = 0;
        }
        if (d < 0) {
            return;
        }
    }
}

static dpar_status dpari_cover_gap(int32_t dims, const int64_t *extent, const dpar_box *box,
                                   const int32_t *order, int32_t n, int64_t missing, dpar_why *why)
{
    int64_t at[DPAR_MAX_DIMS];
    dpari_first_missing(dims, extent, box, order, n, at);
    if (dims == 1) {
        return dpari_say(DPAR_E_ARG, why, "# elements are in no box: the first is #", missing,
                         at[0], 0, 0);
    }
    if (dims == 2) {
        return dpari_say(DPAR_E_ARG, why, "# elements are in no box: the first is (#, #)", missing,
                         at[0], at[1], 0);
    }
    return dpari_say(DPAR_E_ARG, why, "# elements are in no box: the first begins (#, #, #)",
                     missing, dims > 0 ? at[0] : 0, dims > 1 ? at[1] : 0, dims > 2 ? at[2] : 0);
}

DPAR_API DPARI_COLD dpar_status dpar_box_cover(int32_t dims, const int64_t *extent,
                                               const dpar_box *box, int32_t n, int32_t *order,
                                               dpar_why *why)
{
    dpar_box whole, both;
    int64_t left;
    int32_t d, i, j, dim, used = 0;
    if (dims < 0 || dims > DPAR_MAX_DIMS || n < 0) {
        return dpari_say(DPAR_E_ARG, why, "# boxes of # dims: at least 0, and 0 to # dims", n, dims,
                         DPAR_MAX_DIMS, 0);
    }
    dpari_zero(&whole, sizeof(whole));
    whole.dims = dims;
    for (d = 0; d < dims; d++) {
        whole.hi[d] = extent[d];
        if (extent[d] < 0) {
            return dpari_say(DPAR_E_ARG, why, "extent[#] = # is negative", d, extent[d], 0, 0);
        }
    }
    left = dpar_box_volume(&whole);
    if (left < 0) {
        return dpari_say(DPAR_E_RANGE, why, "the array has more than 2^63 - 1 elements", 0, 0, 0,
                         0);
    }
    for (i = 0; i < n; i++) {
        if (box[i].dims != dims) {
            return dpari_say(DPAR_E_ARG, why, "box # has # dims, the array #", i, box[i].dims, dims,
                             0);
        }
        if (dpari_box_empty(&box[i])) {
            continue;
        }
        for (d = 0; d < dims; d++) {
            if (box[i].lo[d] < 0 || box[i].hi[d] > extent[d]) {
                return dpari_say(DPAR_E_ARG, why,
                                 "box # is not inside: indices # to # of a dim of #", i,
                                 box[i].lo[d], box[i].hi[d] - 1, extent[d]);
            }
        }
        order[used++] = i;
    }
    dim = dpari_thin_dim(dims, extent, box, order, used);
    dpari_sort_boxes(box, dims > 0 ? used : 0, dim, order);
    for (i = 0; i < used; i++) {
        const dpar_box *a = &box[order[i]];
        left -= dpar_box_volume(a);
        for (j = i + 1; j < used && (dims == 0 || box[order[j]].lo[dim] < a->hi[dim]); j++) {
            if (dpari_box_intersect(a, &box[order[j]], &both)) {
                return dpari_say(DPAR_E_ARG, why, "boxes # and # both have # elements",
                                 dpari_least(order[i], order[j]), dpari_most(order[i], order[j]),
                                 dpar_box_volume(&both), 0);
            }
        }
    }
    return left == 0 ? DPAR_OK : dpari_cover_gap(dims, extent, box, order, used, left, why);
}
