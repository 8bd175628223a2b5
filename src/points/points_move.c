/* SPDX-License-Identifier: MIT-0 */
/* Moves a mesh to new owners. It implements dpar_points_migration_make.
 *
 * If points have no owner, each rank that gets elements bids for their points by a hash of id and
 * rank. An adjoint exchange with DPAR_MIN over a plan of the old mesh finds the least bid, which
 * gets the point. Points and elements are then sorted at their new owners, and for each a plan from
 * old to new places is made. These plans move ids and corners, and corners are converted to local
 * indices at the end. No rank has the whole mesh. */
#include "points_move.h"

#include "../comm/agree.h"
#include "points_order.h"
#include "points_simple.h"

/* What the ranks say of what they give: the largest of each over all of them. */
enum {
    DPARI_PM_OWNER, /* a rank with points gives it; the next: one does not */
    DPARI_PM_NO_OWNER,
    DPARI_PM_ELEMENT_OWNER,
    DPARI_PM_NO_ELEMENT_OWNER,
    DPARI_PM_ID,
    DPARI_PM_NO_ID,
    DPARI_PM_ELEMENT_ID,
    DPARI_PM_NO_ELEMENT_ID,
    DPARI_PM_CORNERS, /* and their negative */
    DPARI_PM_NO_CORNERS,
    DPARI_PM_SAID,
    DPARI_PM_MOST_CORNERS = 64
};

typedef struct dpari_pm {
    dpar_comm *c;
    const dpar_points_migration_desc *d;
    dpar_points_migration *to;
    int64_t said[DPARI_PM_SAID];
    int32_t corners;        /* of all ranks with elements; 0: there are none */
    int64_t slots;          /* corners of own elements */
    int64_t reads;          /* distinct ids among them, */
    int64_t *reading;       /* [reads] ascending; */
    int32_t *slot;          /* [slots] which of them each is */
    dpar_points *old;       /* exchanges of the mesh as it lies: the reads are ghosts */
    int32_t *owner;         /* [points + reads] who is to have each */
    int32_t *element_owner; /* [elements] */
    dpari_po_pages pages;
} dpari_pm;

/* ---- what is given ----------------------------------------------------------------------------
 */

static dpar_status dpari_pm_check_owners(const dpar_comm *c, const int32_t *owner, int64_t n,
                                         const char *what, dpar_why *why)
{
    int64_t i;
    for (i = 0; owner && i < n; i++) {
        if (owner[i] < 0 || owner[i] >= c->size) {
            return dpari_wrong(why, "%s %ld: its owner is to be rank %d of %d", what, i, owner[i],
                               c->size);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_pm_check(const dpar_comm *c,
                                             const dpar_points_migration_desc *d, dpar_why *why)
{
    dpar_status st = dpari_po_host(c, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (!d || d->point_count < 0 || d->element_count < 0) {
        return dpari_wrong(why, "%ld points, %ld elements", d ? d->point_count : 0,
                           d ? d->element_count : 0);
    }
    if (d->element_count > 0 &&
        (!d->corner || d->corner_count < 1 || d->corner_count > DPARI_PM_MOST_CORNERS)) {
        return dpari_wrong(why, "corner is NULL, or %d corners are not 1 to %d", d->corner_count,
                           (int32_t)DPARI_PM_MOST_CORNERS);
    }
    if (d->point_count > INT32_MAX ||
        (d->element_count > 0 &&
         d->element_count > (INT32_MAX - d->point_count) / d->corner_count)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld points and %ld elements of %d corners: 2^31 - 1 numbers are possible",
                         d->point_count, d->element_count, d->corner_count);
    }
    st = dpari_pm_check_owners(c, d->owner, d->point_count, "point", why);
    return st != DPAR_OK
               ? st
               : dpari_pm_check_owners(c, d->element_owner, d->element_count, "element", why);
}

static DPARI_COLD dpar_status dpari_pm_some(const int64_t *said, const char *what, dpar_why *why)
{
    return said[0] && said[1]
               ? dpari_say(DPAR_E_MISMATCH, why, "%s is given on some ranks, NULL on others", what)
               : DPAR_OK;
}

/* Checks that all ranks describe the same kind of movement. Collective; all ranks get the same
 * message. */
static DPARI_COLD dpar_status dpari_pm_alike(dpari_pm *x, dpar_why *why)
{
    const dpar_points_migration_desc *d = x->d;
    int64_t *s = x->said;
    dpar_status st;
    s[DPARI_PM_OWNER] = d->point_count > 0 && d->owner;
    s[DPARI_PM_NO_OWNER] = d->point_count > 0 && !d->owner;
    s[DPARI_PM_ELEMENT_OWNER] = d->element_count > 0 && d->element_owner;
    s[DPARI_PM_NO_ELEMENT_OWNER] = d->element_count > 0 && !d->element_owner;
    s[DPARI_PM_ID] = d->point_count > 0 && d->id;
    s[DPARI_PM_NO_ID] = d->point_count > 0 && !d->id;
    s[DPARI_PM_ELEMENT_ID] = d->element_count > 0 && d->element_id;
    s[DPARI_PM_NO_ELEMENT_ID] = d->element_count > 0 && !d->element_id;
    s[DPARI_PM_CORNERS] = d->element_count > 0 ? d->corner_count : 0;
    s[DPARI_PM_NO_CORNERS] = d->element_count > 0 ? -d->corner_count : -INT32_MAX;
    st = dpar_all_reduce(x->c, s, s, DPARI_PM_SAID, DPAR_I64, DPAR_MAX, NULL);
    if (st != DPAR_OK) {
        return dpari_po_said(x->c, st, why);
    }
    st = dpari_pm_some(s + DPARI_PM_OWNER, "owner", why);
    st = st == DPAR_OK ? dpari_pm_some(s + DPARI_PM_ELEMENT_OWNER, "element_owner", why) : st;
    st = st == DPAR_OK ? dpari_pm_some(s + DPARI_PM_ID, "id", why) : st;
    st = st == DPAR_OK ? dpari_pm_some(s + DPARI_PM_ELEMENT_ID, "element_id", why) : st;
    if (st == DPAR_OK && s[DPARI_PM_CORNERS] > 0 &&
        s[DPARI_PM_CORNERS] != -s[DPARI_PM_NO_CORNERS]) {
        st =
            dpari_say(DPAR_E_MISMATCH, why, "elements have %ld corners on one rank, %ld on another",
                      -s[DPARI_PM_NO_CORNERS], s[DPARI_PM_CORNERS]);
    }
    if (st == DPAR_OK && (s[DPARI_PM_NO_OWNER] || s[DPARI_PM_NO_ELEMENT_OWNER]) &&
        !s[DPARI_PM_OWNER] && !s[DPARI_PM_ELEMENT_OWNER]) {
        st = dpari_wrong(why, "neither owner nor element_owner is given");
    }
    x->corners = (int32_t)s[DPARI_PM_CORNERS];
    x->slots = d->element_count * x->corners;
    return st;
}

/* ---- the mesh as it lies ----------------------------------------------------------------------
 */

/* Distinct ids among n, ascending, into id[]; which[i]: which of them number i is. */
static int64_t dpari_pm_distinct(const int64_t *of, int64_t n, dpari_po_item *item, int64_t *id,
                                 int32_t *which)
{
    int64_t i, distinct = 0;
    for (i = 0; i < n; i++) {
        item[i].key = of[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        if (i == 0 || item[i].key != item[i - 1].key) {
            id[distinct++] = item[i].key;
        }
        which[item[i].at] = (int32_t)(distinct - 1);
    }
    return distinct;
}

static dpar_status dpari_pm_read(dpari_pm *x, dpar_why *why)
{
    const dpar_points_migration_desc *d = x->d;
    dpar_status st = DPAR_OK;
    dpari_po_pages pages;
    dpari_po_item *item;
    dpari_zero(&pages, sizeof pages);
    item = (dpari_po_item *)dpari_po_take(&pages, 2 * x->slots, sizeof *item, &st, why);
    x->reading = (int64_t *)dpari_po_take(&x->pages, x->slots, 8, &st, why);
    x->slot = (int32_t *)dpari_po_take(&x->pages, x->slots, 4, &st, why);
    x->element_owner = (int32_t *)dpari_po_take(&x->pages, d->element_count, 4, &st, why);
    if (st == DPAR_OK) {
        x->reads = dpari_pm_distinct(d->corner, x->slots, item, x->reading, x->slot);
        x->owner = (int32_t *)dpari_po_take(&x->pages, d->point_count + x->reads, 4, &st, why);
    }
    dpari_po_free(&pages);
    return st;
}

static DPARI_COLD dpar_status dpari_pm_plan(dpari_pm *x, dpar_why *why)
{
    dpar_points_desc d;
    dpari_zero(&d, sizeof d);
    d.own_count = x->d->point_count;
    d.own_id = !x->said[DPARI_PM_ID] ? NULL : x->d->id ? x->d->id : x->reading; /* of no ids */
    d.ghost_count = x->reads;
    d.ghost_id = x->reading;
    return dpar_points_make(x->c, &d, &x->old, why);
}

/* ---- owners -----------------------------------------------------------------------------------
 */

/* What a rank bids for a point: the least gets it. A hash, then the rank. */
static int64_t dpari_pm_bid(int64_t id, int32_t rank)
{
    return (int64_t)(dpari_hash(dpari_hash(0, id), rank) >> 33 << 31) | rank;
}

/* Gives each point to one of the ranks that will have an element with it. */
static dpar_status dpari_pm_bids(dpari_pm *x, dpar_why *why)
{
    const dpar_points_migration_desc *d = x->d;
    const int64_t all = d->point_count + x->reads;
    dpari_po_pages pages;
    dpar_points_field v;
    dpar_status st = DPAR_OK;
    int64_t i, k, *bid;
    dpari_zero(&pages, sizeof pages);
    bid = (int64_t *)dpari_po_take(&pages, all, 8, &st, why);
    st = dpari_agree(x->c, st, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < all; i++) {
        bid[i] = INT64_MAX;
    }
    for (i = 0; i < d->element_count; i++) {
        for (k = i * x->corners; k < (i + 1) * x->corners; k++) {
            const int64_t at = d->point_count + x->slot[k];
            bid[at] =
                dpari_least(bid[at], dpari_pm_bid(x->reading[x->slot[k]], d->element_owner[i]));
        }
    }
    dpari_zero(&v, sizeof v);
    v.type = DPAR_I64;
    v.data = bid;
    st = dpar_points_reduce_begin(x->old, &v, 1, DPAR_MIN);
    st = dpari_po_said(x->c, st == DPAR_OK ? dpar_points_end(x->old) : st, why);
    for (i = 0; i < d->point_count && st == DPAR_OK; i++) {
        x->owner[i] = bid[i] == INT64_MAX ? x->c->rank : (int32_t)(bid[i] & INT32_MAX);
    }
    dpari_po_free(&pages);
    return st;
}

/* The rank that is to have most of an element's corners. */
static int32_t dpari_pm_majority(const dpari_pm *x, int64_t element)
{
    const int32_t *slot = x->slot + element * x->corners, *owner = x->owner + x->d->point_count;
    int32_t i, k, best = INT32_MAX, most = 0;
    for (i = 0; i < x->corners; i++) {
        int32_t n = 0;
        for (k = 0; k < x->corners; k++) {
            n += owner[slot[k]] == owner[slot[i]];
        }
        if (n > most || (n == most && owner[slot[i]] < best)) {
            most = n;
            best = owner[slot[i]];
        }
    }
    return best;
}

/* Who is to have each point, those that own elements read, and each element. */
static dpar_status dpari_pm_owners(dpari_pm *x, dpar_why *why)
{
    dpar_points_field v;
    dpar_status st = DPAR_OK;
    int64_t i;
    if (x->said[DPARI_PM_NO_OWNER]) {
        st = dpari_pm_bids(x, why);
    }
    for (i = 0; x->said[DPARI_PM_OWNER] && i < x->d->point_count; i++) {
        x->owner[i] = x->d->owner[i];
    }
    dpari_zero(&v, sizeof v);
    v.type = DPAR_I32;
    v.data = x->owner;
    st = st == DPAR_OK ? dpari_po_said(x->c, dpar_points_exchange_many(x->old, &v, 1), why) : st;
    for (i = 0; i < x->d->element_count && st == DPAR_OK; i++) {
        x->element_owner[i] =
            x->said[DPARI_PM_ELEMENT_OWNER] ? x->d->element_owner[i] : dpari_pm_majority(x, i);
    }
    return st;
}

/* ---- things that move -------------------------------------------------------------------------
 */

/* n things with ids, or numbered from `first`, their new owners; and what came of it. */
typedef struct dpari_pm_move {
    int64_t n;
    const int64_t *id, *order;
    const int32_t *owner;
    int64_t first;
    int64_t came; /* things of this rank afterwards, */
    void *ids;    /* and their ids, of dpar_comm_alloc */
    dpar_points *plan;
    /* while it is planned */
    int64_t *sends, *receives; /* [size] */
    int64_t *twice;            /* [2 * size] */
    int32_t *peer;             /* [size] */
    int64_t *out, *in;         /* [2 * n], [2 * came] order and id of each */
    int32_t *send_at, *receive_at;
    dpari_po_item *item;
    dpari_po_pages pages;
} dpari_pm_move;

/* Sorts items by the rank that gets them, in their order, and sends the counts to all ranks. */
static dpar_status dpari_pm_send(dpar_comm *c, dpari_pm_move *m, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int64_t i, at = 0;
    int32_t r;
    m->sends = (int64_t *)dpari_po_take(&m->pages, 5 * (int64_t)c->size, 8, &st, why);
    m->out = (int64_t *)dpari_po_take(&m->pages, 2 * m->n, 8, &st, why);
    m->send_at = (int32_t *)dpari_po_take(&m->pages, m->n, 4, &st, why);
    st = dpari_agree(c, st, why);
    if (st != DPAR_OK) {
        return st;
    }
    m->receives = m->sends + c->size;
    m->twice = m->receives + c->size;
    m->peer = (int32_t *)(void *)(m->twice + 2 * c->size);
    for (i = 0; i < m->n; i++) {
        m->sends[m->owner[i]]++;
    }
    for (r = 0; r < c->size; r++) { /* twice: where the next for r goes */
        m->twice[r] = at;
        at += m->sends[r];
    }
    for (i = 0; i < m->n; i++) {
        const int64_t id = m->id ? m->id[i] : m->first + i;
        at = m->twice[m->owner[i]]++;
        m->send_at[at] = (int32_t)i;
        m->out[2 * at] = m->order ? m->order[i] : id;
        m->out[2 * at + 1] = id;
    }
    return dpari_po_said(c, dpar_all_to_all(c, m->sends, m->receives, 1, DPAR_I64, NULL), why);
}

/* Receives orders and ids, and computes the place of each item. */
static dpar_status dpari_pm_receive(dpar_comm *c, dpari_pm_move *m, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int64_t i;
    int32_t r;
    for (r = 0; r < c->size; r++) {
        m->twice[r] = 2 * m->sends[r];
        m->twice[c->size + r] = 2 * m->receives[r];
        m->came += m->receives[r];
    }
    if (m->n + m->came > INT32_MAX) {
        st =
            dpari_say(DPAR_E_RANGE, why, "%ld go from and %ld come to rank %d: together at most %d",
                      m->n, m->came, c->rank, (int32_t)INT32_MAX);
    }
    m->in = (int64_t *)dpari_po_take(&m->pages, 2 * m->came, 8, &st, why);
    m->receive_at = (int32_t *)dpari_po_take(&m->pages, m->came, 4, &st, why);
    m->item = (dpari_po_item *)dpari_po_take(&m->pages, 2 * m->came, sizeof *m->item, &st, why);
    if (st == DPAR_OK) {
        st = dpari_po_said(c, dpar_comm_alloc(c, 8 * m->came + 8, &m->ids), why);
    }
    st = dpari_agree(c, st, why);
    if (st == DPAR_OK) {
        st = dpari_po_said(c,
                           dpar_all_to_all_v(c, m->out, m->twice, NULL, m->in, m->twice + c->size,
                                             NULL, DPAR_I64, NULL),
                           why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < m->came; i++) {
        m->item[i].key = m->in[2 * i];
        m->item[i].id = m->in[2 * i + 1];
        m->item[i].at = i;
    }
    m->item = dpari_po_sort(m->item, m->item + m->came, m->came);
    for (i = 0; i < m->came; i++) {
        ((int64_t *)m->ids)[i] = m->item[i].id;
        m->receive_at[m->item[i].at] = (int32_t)(m->n + i);
    }
    return DPAR_OK;
}

/* Makes the plan from the old places of items to the new ones. */
static DPARI_COLD dpar_status dpari_pm_move_plan(dpar_comm *c, dpari_pm_move *m, dpar_why *why)
{
    dpar_points_desc d;
    dpar_points_lists l;
    dpar_status st = dpari_pm_send(c, m, why);
    int32_t r;
    st = st == DPAR_OK ? dpari_pm_receive(c, m, why) : st;
    if (st == DPAR_OK) {
        dpari_zero(&d, sizeof d);
        dpari_zero(&l, sizeof l);
        for (r = 0; r < c->size; r++) {
            if (m->sends[r] + m->receives[r] > 0) {
                m->sends[l.peer_count] = m->sends[r];
                m->receives[l.peer_count] = m->receives[r];
                m->peer[l.peer_count++] = r;
            }
        }
        l.peer = m->peer;
        l.send_count = m->sends;
        l.receive_count = m->receives;
        l.send_index = m->send_at;
        l.receive_index = m->receive_at;
        d.own_count = m->n;
        d.ghost_count = m->came;
        d.lists = &l;
        st = dpar_points_make(c, &d, &m->plan, why);
    }
    dpari_po_free(&m->pages);
    return st;
}

/* ---- the mesh as it is to lie -----------------------------------------------------------------
 */

typedef struct dpari_pm_new {
    int64_t slots;
    int64_t *corner;     /* [slots] ids */
    int32_t *owner;      /* [slots] who has each */
    int64_t *reading;    /* [slots] distinct ones */
    int32_t *slot;       /* [slots] */
    int32_t *local;      /* [slots] of each distinct one: local index */
    dpari_po_item *item; /* [2 * the larger of slots and own points] */
    dpari_po_pages pages;
} dpari_pm_new;

/* Elements' corners, with their owners, go where the elements go. */
static dpar_status dpari_pm_corners(dpari_pm *x, dpari_pm_new *n, dpar_why *why)
{
    const int64_t own = x->to->desc.own_count;
    dpari_po_pages pages;
    dpar_points_field v[2];
    dpar_status st = DPAR_OK;
    int32_t *owner;
    int64_t i;
    dpari_zero(&pages, sizeof pages);
    owner = (int32_t *)dpari_po_take(&pages, x->slots, 4, &st, why);
    if (!dpari_mul(x->to->element_count, x->corners, &n->slots) || n->slots > INT32_MAX) {
        st = dpari_say(DPAR_E_RANGE, why, "%ld elements of %d corners come to rank %d",
                       x->to->element_count, x->corners, x->c->rank);
    }
    n->corner = (int64_t *)dpari_po_take(&n->pages, n->slots, 8, &st, why);
    n->owner = (int32_t *)dpari_po_take(&n->pages, n->slots, 4, &st, why);
    n->reading = (int64_t *)dpari_po_take(&n->pages, n->slots, 8, &st, why);
    n->slot = (int32_t *)dpari_po_take(&n->pages, n->slots, 4, &st, why);
    n->local = (int32_t *)dpari_po_take(&n->pages, n->slots, 4, &st, why);
    n->item = (dpari_po_item *)dpari_po_take(&n->pages, 2 * dpari_most(n->slots, own),
                                             sizeof *n->item, &st, why);
    st = dpari_agree(x->c, st, why);
    for (i = 0; i < x->slots && st == DPAR_OK; i++) {
        owner[i] = x->owner[x->d->point_count + x->slot[i]];
    }
    dpari_zero(v, sizeof v);
    v[0].type = DPAR_I64;
    v[1].type = DPAR_I32;
    v[0].components = v[1].components = x->corners;
    v[0].data = x->slots > 0 ? (void *)(uintptr_t)x->d->corner : x->reading; /* read alone */
    v[1].data = owner;
    v[0].ghosts = n->corner;
    v[1].ghosts = n->owner;
    st = st == DPAR_OK
             ? dpari_po_said(x->c, dpar_points_exchange_many(x->to->element_points, v, 2), why)
             : st;
    dpari_po_free(&pages);
    return st;
}

/* Local indices of those distinct ids that are own points; -1 of the others, and how many. */
static int64_t dpari_pm_own(const dpari_pm *x, const dpari_pm_new *n, int64_t reads)
{
    const dpar_points_desc *d = &x->to->desc;
    dpari_po_item *item = n->item;
    int64_t i, k = 0, others = 0;
    for (i = 0; i < d->own_count; i++) {
        item[i].key = d->own_id[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + d->own_count, d->own_count);
    for (i = 0; i < reads; i++) {
        while (k < d->own_count && item[k].key < n->reading[i]) {
            k++;
        }
        n->local[i] = k < d->own_count && item[k].key == n->reading[i] ? (int32_t)item[k].at : -1;
        others += n->local[i] < 0;
    }
    return others;
}

/* Ghosts by owner, then id; corners become local indices. `memory`: of their arrays. */
static void dpari_pm_number(dpari_pm *x, const dpari_pm_new *n, int64_t reads, int64_t *memory)
{
    dpar_points_desc *d = &x->to->desc;
    int64_t *const id = memory;
    int32_t *const owner = (int32_t *)(void *)(id + d->ghost_count);
    dpari_po_item *item = n->item;
    int64_t i, k = 0;
    x->to->corner = owner + d->ghost_count;
    for (i = 0; i < n->slots; i++) { /* the owner of each distinct id, for a while */
        x->to->corner[n->slot[i]] = n->owner[i];
    }
    for (i = 0; i < reads; i++) {
        if (n->local[i] < 0) {
            item[k].key = x->to->corner[i];
            item[k].id = n->reading[i];
            item[k++].at = i;
        }
    }
    item = dpari_po_sort(item, item + k, k);
    for (i = 0; i < k; i++) {
        id[i] = item[i].id;
        owner[i] = (int32_t)item[i].key;
        n->local[item[i].at] = (int32_t)(d->own_count + i);
    }
    for (i = 0; i < n->slots; i++) {
        x->to->corner[i] = n->local[n->slot[i]];
    }
    d->ghost_id = id;
    d->owner = owner;
}

static DPARI_COLD dpar_status dpari_pm_renumber(dpari_pm *x, dpar_why *why)
{
    dpari_pm_new n;
    dpar_status st;
    int64_t reads, ghosts;
    dpari_zero(&n, sizeof n);
    st = dpari_pm_corners(x, &n, why);
    if (st == DPAR_OK) {
        reads = dpari_pm_distinct(n.corner, n.slots, n.item, n.reading, n.slot);
        ghosts = dpari_pm_own(x, &n, reads);
        st = dpari_po_said(
            x->c, dpar_comm_alloc(x->c, 12 * ghosts + 4 * n.slots + 8, &x->to->memory[2]), why);
        if (st == DPAR_OK) {
            x->to->desc.ghost_count = ghosts;
            dpari_pm_number(x, &n, reads, (int64_t *)x->to->memory[2]);
        }
        st = dpari_agree(x->c, st, why);
    }
    dpari_po_free(&n.pages);
    return st;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static DPARI_COLD dpar_status dpari_pm_go(dpari_pm *x, dpar_why *why)
{
    const dpar_points_migration_desc *d = x->d;
    dpar_points_migration *to = x->to;
    dpari_pm_move m;
    dpar_status st = dpari_pm_owners(x, why);
    dpari_zero(&m, sizeof m);
    m.n = d->point_count;
    m.id = d->id;
    m.order = d->order;
    m.owner = x->owner;
    m.first = x->old->first_id;
    st = st == DPAR_OK ? dpari_pm_move_plan(x->c, &m, why) : st;
    to->points = m.plan;
    to->memory[0] = m.ids;
    to->desc.own_count = m.came;
    to->desc.own_id = (const int64_t *)m.ids;
    if (st != DPAR_OK || x->corners == 0) {
        return st;
    }
    dpari_zero(&m, sizeof m);
    m.n = d->element_count;
    m.id = d->element_id;
    m.order = d->element_order;
    m.owner = x->element_owner;
    st = dpari_po_first(x->c, d->element_count, &m.first, why);
    st = st == DPAR_OK ? dpari_pm_move_plan(x->c, &m, why) : st;
    to->element_points = m.plan;
    to->memory[1] = m.ids;
    to->element_count = m.came;
    to->element_id = (int64_t *)m.ids;
    return st == DPAR_OK ? dpari_pm_renumber(x, why) : st;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_make(dpar_comm *c,
                                                           const dpar_points_migration_desc *d,
                                                           dpar_points_migration **moved,
                                                           dpar_why *why)
{
    dpari_pm x;
    void *memory = NULL;
    dpar_status st, closed;
    if (!c) {
        return dpari_wrong(why, "no communicator");
    }
    dpari_zero(&x, sizeof x);
    x.c = c;
    x.d = d;
    st = moved ? dpari_pm_check(c, d, why) : dpari_wrong(why, "moved is NULL");
    st = dpari_agree(c, st, why);
    st = st == DPAR_OK ? dpari_pm_alike(&x, why) : st;
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_po_said(c, dpar_comm_alloc(c, sizeof *x.to, &memory), why);
    st = dpari_agree(c, st == DPAR_OK ? dpari_pm_read(&x, why) : st, why);
    x.to = (dpar_points_migration *)memory;
    st = st == DPAR_OK ? dpari_pm_plan(&x, why) : st;
    if (st == DPAR_OK) {
        x.to->comm = c;
        st = dpari_pm_go(&x, why);
        closed = dpar_points_free(x.old);
        st = st == DPAR_OK ? dpari_po_said(c, closed, why) : st;
    }
    dpari_po_free(&x.pages);
    if (st == DPAR_OK) {
        *moved = x.to;
    } else if (x.to && x.to->comm) {
        (void)dpar_points_migration_free(x.to);
    } else {
        dpar_comm_release(c, memory);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_free(dpar_points_migration *moved)
{
    dpar_comm *c = moved ? moved->comm : NULL;
    dpar_status st, element_points;
    int32_t i;
    if (!moved) {
        return DPAR_OK;
    }
    st = dpar_points_free(moved->points);
    element_points = dpar_points_free(moved->element_points);
    for (i = 0; i < 3; i++) {
        dpar_comm_release(c, moved->memory[i]);
    }
    dpar_comm_release(c, moved);
    return st != DPAR_OK ? st : element_points;
}
