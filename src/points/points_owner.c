/* SPDX-License-Identifier: MIT-0 */
/* Finds the owner of each ghost, and which ranks read each own value. points_owner.h has the three
 * rounds of messages; points.c calls it when a plan is made. */
#include "points_owner.h"

#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/os.h"

/* ---- tables of ids ----------------------------------------------------------------------------
 */

DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n)
{
    int64_t room = 2;
    while (room < n + n / 2) {
        room *= 2;
    }
    return n > 0 ? room : 0;
}

static void dpari_pt_table_init(dpari_pt_table *t, dpari_pt_entry *entry, int64_t n)
{
    int64_t i;
    t->entry = entry;
    t->mask = dpari_pt_table_room(n) - 1;
    for (i = 0; i <= t->mask; i++) {
        entry[i].at = -1;
    }
}

/* Twice: ids may differ in high bits alone, as those that are packed of several numbers, and once
 * does not bring these down. */
static uint64_t dpari_pt_hash(uint64_t seed, int64_t id)
{
    return dpari_hash(dpari_hash(seed, id), 0);
}

/* Where the id is, or the free entry where it would be. */
static dpari_pt_entry *dpari_pt_seek(const dpari_pt_table *t, int64_t id)
{
    int64_t i = (int64_t)(dpari_pt_hash(1, id) >> 16) & t->mask;
    while (t->entry[i].at >= 0 && t->entry[i].id != id) {
        i = (i + 1) & t->mask;
    }
    return &t->entry[i];
}

static int64_t dpari_pt_find(const dpari_pt_table *t, int64_t id)
{
    return t->mask < 0 ? -1 : dpari_pt_seek(t, id)->at;
}

/* Puts it there unless it is there already; what was there, or -1. */
static int64_t dpari_pt_put(dpari_pt_table *t, int64_t id, int64_t at)
{
    dpari_pt_entry *e = dpari_pt_seek(t, id);
    const int64_t was = e->at;
    if (was < 0) {
        e->id = id;
        e->at = at;
    }
    return was;
}

/* Element `id` of the rule's array, in C order. 0: it has no such element. */
static int dpari_pt_element(const dpar_layout *l, int64_t id, int64_t *index)
{
    int32_t d;
    for (d = l->dims - 1; d >= 0 && id >= 0; d--) {
        if (l->extent[d] == 0) {
            return 0;
        }
        index[d] = id % l->extent[d];
        id /= l->extent[d];
    }
    return id == 0;
}

static int64_t dpari_pt_ruled_index(const dpari_points *x, int64_t id)
{
    int64_t index[DPAR_MAX_DIMS], local[DPAR_MAX_DIMS], shape[DPAR_MAX_DIMS], at = 0;
    int32_t d;
    if (!dpari_pt_element(&x->rule, id, index) ||
        dpar_layout_owner(&x->rule, index, 0, local) != x->head.comm->rank) {
        return -1;
    }
    dpar_layout_local(&x->rule, x->head.comm->rank, shape, NULL);
    for (d = 0; d < x->rule.dims; d++) {
        at = at * shape[d] + local[d];
    }
    return at;
}

DPARI_INTERNAL int64_t dpari_pt_own_index(const dpari_points *x, int64_t id)
{
    int64_t at;
    if (x->ruled && !x->hashed) {
        return dpari_pt_ruled_index(x, id);
    }
    if (!x->hashed) {
        at = id - x->head.first_id;
        return id >= x->head.first_id && at < x->head.own_count ? at : -1;
    }
    at = dpari_pt_find(&x->table, id);
    return at < x->head.own_count ? at : -1;
}

DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *x, int64_t id)
{
    const int64_t at = x->hashed ? -1 : dpari_pt_own_index(x, id);
    return at >= 0 ? at : dpari_pt_find(&x->table, id);
}

/* ---- mail -------------------------------------------------------------------------------------
 *
 * Numbers for other ranks, sorted by rank, and what comes of theirs. */
typedef struct dpari_pt_mail {
    dpar_comm *c;
    int64_t *count; /* [4 * size]: out, where; in, where */
    int64_t *out, *in;
    int64_t outs, ins;
    void *memory;
} dpari_pt_mail;

static void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all)
{
    int32_t i;
    *all = 0;
    for (i = 0; i < n; i++) {
        at[i] = *all;
        *all += count[i];
    }
}

DPARI_INTERNAL dpar_status dpari_pt_said(const dpar_comm *c, dpar_status st, dpar_why *why)
{
    return st == DPAR_OK ? st : dpari_repeat(st, why, c->why.text);
}

/* Begins an all-to-all of n numbers: counts them by destination, exchanges the counts and allocates
 * both sides. m->count + size then has the place of the next number for each rank. st is an error
 * from before. Collective. */
static dpar_status dpari_pt_open(dpari_pt_mail *m, dpar_comm *c, const int32_t *to, int64_t n,
                                 dpar_status st, dpar_why *why)
{
    const int32_t p = c->size;
    void *counts = NULL;
    int64_t i;
    dpari_zero(m, sizeof *m);
    m->c = c;
    if (st == DPAR_OK) {
        st = dpari_pt_said(c, dpar_comm_alloc(c, 4 * (int64_t)sizeof(int64_t) * p, &counts), why);
    }
    m->count = (int64_t *)counts;
    st = dpari_agree_on(c, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < n; i++) {
        m->count[to[i]]++;
    }
    st = dpari_pt_said(c, dpar_all_to_all(c, m->count, m->count + 2 * p, 1, DPAR_I64, NULL), why);
    if (st == DPAR_OK) {
        dpari_pt_add_up(m->count, m->count + p, p, &m->outs);
        dpari_pt_add_up(m->count + 2 * p, m->count + 3 * p, p, &m->ins);
        st = dpari_pt_said(
            c, dpar_comm_alloc(c, (int64_t)sizeof(int64_t) * (m->outs + m->ins + 1), &m->memory),
            why);
    }
    m->out = (int64_t *)m->memory;
    m->in = m->out ? m->out + m->outs : NULL;
    return dpari_agree_on(c, st, "points", NULL, NULL, why);
}

/* out to their ranks; back: answers, which take the place of what came in. */
static dpar_status dpari_pt_go(dpari_pt_mail *m, int back, dpar_why *why)
{
    int64_t *n = m->count, *in = m->count + 2 * m->c->size;
    dpar_status st;
    if (back) {
        st = dpar_all_to_all_v(m->c, m->in, in, NULL, m->out, n, NULL, DPAR_I64, NULL);
    } else {
        st = dpar_all_to_all_v(m->c, m->out, n, NULL, m->in, in, NULL, DPAR_I64, NULL);
    }
    return dpari_pt_said(m->c, st, why);
}

static void dpari_pt_close(dpari_pt_mail *m)
{
    dpar_comm_release(m->c, m->memory);
    dpar_comm_release(m->c, m->count);
}

/* ---- owners -----------------------------------------------------------------------------------
 */

static dpar_status dpari_pt_nobody(const dpari_points *x, int64_t id, int64_t ghost, dpar_why *why)
{
    return dpari_wrong(why, "id %ld, ghost %ld of rank %d, is owned by no rank", id, ghost,
                       x->head.comm->rank);
}

/* The last rank whose first id is not above. */
static int32_t dpari_pt_holder(const int64_t *first, int32_t n, int64_t id)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (first[middle] <= id) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Ids go on from rank to rank. */
static dpar_status dpari_pt_by_range(dpari_points *x, const dpar_points_desc *d, int32_t *owner,
                                     dpar_why *why)
{
    dpar_comm *c = x->head.comm;
    const int64_t bytes = (int64_t)sizeof(int64_t) * 2 * c->size;
    int64_t *count, g, all = 0;
    void *memory = NULL;
    dpar_status st = dpari_pt_said(c, dpar_comm_alloc(c, bytes, &memory), why);
    st = dpari_agree_on(c, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        dpar_comm_release(c, memory);
        return st;
    }
    count = (int64_t *)memory;
    st = dpari_pt_said(c, dpar_all_gather(c, &d->own_count, count, 1, DPAR_I64, NULL), why);
    dpari_pt_add_up(count, count + c->size, c->size, &all);
    x->head.first_id = count[c->size + c->rank];
    for (g = 0; g < d->ghost_count && st == DPAR_OK; g++) {
        const int64_t id = d->ghost_id[g];
        if (id < 0 || id >= all) {
            st = dpari_pt_nobody(x, id, g, why);
        } else {
            owner[g] = dpari_pt_holder(count + c->size, c->size, id);
        }
    }
    dpar_comm_release(c, memory);
    return st;
}

static dpar_status dpari_pt_by_owner(const dpari_points *x, const dpar_points_desc *d,
                                     int32_t *owner, dpar_why *why)
{
    int64_t g, index[DPAR_MAX_DIMS];
    for (g = 0; g < d->ghost_count; g++) {
        owner[g] = d->owner ? d->owner[g]
                   : dpari_pt_element(d->layout, d->ghost_id[g], index)
                       ? dpar_layout_owner(d->layout, index, 0, NULL)
                       : -1;
        if (!d->owner && owner[g] < 0) {
            return dpari_pt_nobody(x, d->ghost_id[g], g, why);
        }
        if (owner[g] < 0 || owner[g] >= x->head.comm->size) {
            return dpari_wrong(why, "ghost %ld, id %ld: its owner is rank %d of %d", g,
                               d->ghost_id[g], owner[g], x->head.comm->size);
        }
    }
    return DPAR_OK;
}

static int32_t dpari_pt_home(int64_t id, int32_t ranks)
{
    return (int32_t)((dpari_pt_hash(0, id) >> 20) % (uint64_t)ranks);
}

/* Computes the home of each of n ids; it is later replaced by the place in what is sent there. */
static void dpari_pt_homes(const int64_t *id, int64_t n, int32_t ranks, int32_t *home)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        home[i] = dpari_pt_home(id[i], ranks);
    }
}

/* Puts the numbers of each where they go, and in place of the rank its place. */
static void dpari_pt_deal(dpari_pt_mail *m, const int64_t *number, int64_t n, int32_t *to)
{
    int64_t i, *next = m->count + m->c->size;
    for (i = 0; i < n; i++) {
        const int64_t at = next[to[i]]++;
        m->out[at] = number[i];
        to[i] = (int32_t)at;
    }
}

/* Enters the ids that owners have registered into the table of this home. */
static dpar_status dpari_pt_note(dpari_pt_table *t, const dpari_pt_mail *m, dpar_why *why)
{
    const int64_t *n = m->count + 2 * m->c->size;
    dpar_status st = DPAR_OK;
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < m->c->size; r++) {
        for (end += n[r]; k < end; k++) {
            const int64_t was = dpari_pt_put(t, m->in[k], r);
            if (was == r) {
                st = dpari_wrong(why, "id %ld is twice among the own ids of rank %d", m->in[k], r);
            } else if (was >= 0) {
                st = dpari_wrong(why, "id %ld is owned by two ranks, %ld and %d", m->in[k], was, r);
            }
        }
    }
    return st;
}

/* Runs rounds 1 and 2. `to` has as many elements as the larger of own and ghosts. */
static dpar_status dpari_pt_by_directory(dpari_points *x, const dpar_points_desc *d, int32_t *owner,
                                         int32_t *to, dpar_why *why)
{
    dpar_comm *c = x->head.comm;
    dpari_pt_mail m;
    dpari_pt_table t;
    int64_t bytes = 0, i;
    void *pages = NULL;
    dpar_status st;
    dpari_pt_homes(d->own_id, d->own_count, c->size, to);
    st = dpari_pt_open(&m, c, to, d->own_count, DPAR_OK, why);
    if (st == DPAR_OK) {
        dpari_pt_deal(&m, d->own_id, d->own_count, to);
        st = dpari_pt_go(&m, 0, why);
        bytes = dpari_pt_table_room(m.ins + 1) * (int64_t)sizeof(dpari_pt_entry);
        pages = st == DPAR_OK ? dpari_os_pages(bytes) : NULL;
    }
    if (pages) {
        dpari_pt_table_init(&t, (dpari_pt_entry *)pages, m.ins + 1);
        st = dpari_pt_note(&t, &m, why);
    } else if (st == DPAR_OK) {
        st = dpari_say(DPAR_E_MEMORY, why, "no memory for %ld ids", m.ins);
    }
    dpari_pt_close(&m);
    dpari_pt_homes(d->ghost_id, d->ghost_count, c->size, to);
    st = dpari_pt_open(&m, c, to, d->ghost_count, st, why);
    if (st == DPAR_OK) {
        dpari_pt_deal(&m, d->ghost_id, d->ghost_count, to);
        st = dpari_pt_go(&m, 0, why);
        for (i = 0; i < m.ins && st == DPAR_OK; i++) {
            m.in[i] = dpari_pt_find(&t, m.in[i]);
        }
        st = st == DPAR_OK ? dpari_pt_go(&m, 1, why) : st;
        for (i = 0; i < d->ghost_count && st == DPAR_OK; i++) {
            owner[i] = (int32_t)m.out[to[i]];
            st = owner[i] < 0 ? dpari_pt_nobody(x, d->ghost_id[i], i, why) : st;
        }
    }
    dpari_pt_close(&m);
    if (pages) {
        dpari_os_unmap(pages, bytes);
    }
    return st;
}

/* ---- order ------------------------------------------------------------------------------------
 */

/* Sorts id[0 .. n - 1] and what goes with each, by id, equal ones as they are; spare: n of each. */
static void dpari_pt_sort(int64_t *id, int32_t *with, int64_t n, int64_t *spare,
                          int32_t *spare_with)
{
    int64_t width, i, low;
    for (i = 1; i < n && id[i - 1] <= id[i]; i++) {
    }
    for (width = 1; width < n && i < n; width *= 2) {
        for (low = 0; low < n; low += 2 * width) {
            const int64_t middle = dpari_least(low + width, n);
            const int64_t high = dpari_least(low + 2 * width, n);
            int64_t a = low, b = middle, k;
            for (k = low; k < high; k++) {
                const int64_t from = b >= high || (a < middle && id[a] <= id[b]) ? a++ : b++;
                spare[k] = id[from];
                spare_with[k] = with[from];
            }
        }
        for (low = 0; low < n; low++) {
            id[low] = spare[low];
            with[low] = spare_with[low];
        }
    }
}

/* ---- lists of both sides ----------------------------------------------------------------------
 */

DPARI_INTERNAL void dpari_pt_both_free(dpari_pt_both *both)
{
    int32_t i;
    for (i = 0; i < 2; i++) {
        if (both->pages[i]) {
            dpari_os_unmap(both->pages[i], both->bytes[i]);
        }
    }
}

/* Pages for n numbers of 4 bytes and `more` of 8. */
static dpar_status dpari_pt_pages(dpari_pt_both *both, int32_t i, int64_t n, int64_t more,
                                  dpar_why *why)
{
    both->bytes[i] = 4 * n + 8 * more + 8;
    both->pages[i] = dpari_os_pages(both->bytes[i]);
    return both->pages[i]
               ? DPAR_OK
               : dpari_say(DPAR_E_MEMORY, why, "no memory: %ld bytes are needed for a while",
                           both->bytes[i]);
}

/* Sets the counts of both sides, and the list of what is sent. */
static dpar_status dpari_pt_set_both(dpari_pt_both *both, const dpari_pt_mail *m, int32_t size,
                                     dpar_why *why)
{
    const dpar_status st = dpari_pt_pages(both, 1, m->ins, 2 * size, why);
    int32_t r;
    if (st != DPAR_OK) {
        return st;
    }
    both->sends = (int64_t *)both->pages[1];
    both->receives = both->sends + size;
    both->send_at = (int32_t *)(void *)(both->receives + size);
    both->sent = m->ins;
    for (r = 0; r < size; r++) {
        both->receives[r] = m->count[r];
        both->sends[r] = m->count[2 * size + r];
    }
    return st;
}

/* Round 3, the owner's part: the ids that others read, as own values. */
static dpar_status dpari_pt_look_up(const dpari_points *x, const dpari_pt_mail *m,
                                    dpari_pt_both *both, dpar_why *why)
{
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < m->c->size; r++) {
        for (end += both->sends[r]; k < end; k++) {
            const int64_t at = dpari_pt_own_index(x, m->in[k]);
            if (at < 0) {
                return dpari_wrong(
                    why, "id %ld, which rank %d reads, is not among the own ids of rank %d",
                    m->in[k], r, m->c->rank);
            }
            both->send_at[k] = (int32_t)at;
        }
    }
    return DPAR_OK;
}

/* Sets the places of ghosts, in the order of what each rank sends, and enters them in the table.
 * `to` has their places in m->out. */
static void dpari_pt_set_places(dpari_points *x, const dpar_points_desc *d, dpari_pt_mail *m,
                                const int32_t *to, int32_t *spare, int64_t *spare_id,
                                dpari_pt_both *both)
{
    int64_t g, at = 0;
    int32_t r;
    for (g = 0; g < d->ghost_count; g++) {
        both->receive_at[to[g]] = (int32_t)g;
    }
    for (r = 0; r < m->c->size && d->order == DPAR_POINTS_ORDER_BY_OWNER; r++) {
        dpari_pt_sort(m->out + at, both->receive_at + at, m->count[r], spare_id, spare);
        at += m->count[r];
    }
    for (g = 0; g < d->ghost_count; g++) {
        const int sorted = d->order == DPAR_POINTS_ORDER_BY_OWNER;
        (void)dpari_pt_put(&x->table, sorted ? m->out[g] : d->ghost_id[g], d->own_count + g);
        both->receive_at[g] = sorted ? (int32_t)g : both->receive_at[g];
    }
}

/* Own ids into the table. */
static dpar_status dpari_pt_enter(dpari_points *x, const dpar_points_desc *d, dpar_why *why)
{
    int64_t i;
    dpari_pt_table_init(&x->table, x->table.entry, (x->hashed ? d->own_count : 0) + d->ghost_count);
    for (i = 0; i < d->own_count && x->hashed; i++) {
        const int64_t was = dpari_pt_put(&x->table, d->own_id[i], i);
        if (was >= 0) {
            return dpari_wrong(why, "id %ld is twice among the own ids of rank %d: %ld and %ld",
                               d->own_id[i], x->head.comm->rank, was, i);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_ids(dpari_points *x, const dpar_points_desc *d,
                                                      dpari_pt_both *both, dpar_why *why)
{
    const int64_t most = dpari_most(d->own_count, d->ghost_count);
    dpari_pt_mail m;
    int32_t *owner, *to;
    int64_t *spare;
    dpar_status st = dpari_pt_pages(both, 0, 2 * d->ghost_count + most, d->ghost_count, why);
    st = st == DPAR_OK ? dpari_pt_enter(x, d, why) : st;
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    spare = (int64_t *)both->pages[0];
    both->receive_at = (int32_t *)(void *)(spare + d->ghost_count);
    owner = both->receive_at + d->ghost_count;
    to = owner + d->ghost_count;
    st = x->given_owner || x->ruled ? dpari_pt_by_owner(x, d, owner, why)
         : x->hashed                ? dpari_pt_by_directory(x, d, owner, to, why)
                                    : dpari_pt_by_range(x, d, owner, why);
    st = dpari_pt_open(&m, x->head.comm, owner, d->ghost_count, st, why);
    if (st == DPAR_OK) {
        dpari_pt_deal(&m, d->ghost_id, d->ghost_count, owner);
        dpari_pt_set_places(x, d, &m, owner, to, spare, both);
        st = dpari_pt_go(&m, 0, why);
        st = st == DPAR_OK ? dpari_pt_set_both(both, &m, x->head.comm->size, why) : st;
        st = st == DPAR_OK ? dpari_pt_look_up(x, &m, both, why) : st;
        st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    }
    dpari_pt_close(&m);
    return st;
}

/* The lists of the caller, sorted by rank. */
static void dpari_pt_sort_lists(const dpar_points_desc *d, dpari_pt_both *both, int32_t size)
{
    const dpar_points_lists *l = d->lists;
    int64_t *send_next = (int64_t *)both->pages[0], *receive_next = send_next + size;
    int64_t all, s = 0, r = 0, k;
    int32_t i;
    dpari_pt_add_up(both->sends, send_next, size, &all);
    dpari_pt_add_up(both->receives, receive_next, size, &all);
    for (i = 0; i < l->peer_count; i++) {
        int64_t *send = &send_next[l->peer[i]], *receive = &receive_next[l->peer[i]];
        for (k = 0; k < l->send_count[i]; k++) {
            both->send_at[(*send)++] = l->send_index[s++];
        }
        for (k = 0; k < l->receive_count[i]; k++, r++) {
            both->receive_at[(*receive)++] =
                l->receive_index ? l->receive_index[r] - (int32_t)d->own_count : (int32_t)r;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_lists(dpari_points *x, const dpar_points_desc *d,
                                                        dpari_pt_both *both, dpar_why *why)
{
    const dpar_points_lists *l = d->lists;
    const int32_t size = x->head.comm->size;
    int64_t sent = 0, *told = NULL;
    dpar_status st;
    int32_t i;
    for (i = 0; i < l->peer_count; i++) {
        sent += l->send_count[i];
    }
    st = dpari_pt_pages(both, 0, d->ghost_count, 4 * size, why);
    st = st == DPAR_OK ? dpari_pt_pages(both, 1, sent, 2 * size, why) : st;
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    told = (int64_t *)both->pages[0] + 2 * size;
    both->receive_at = (int32_t *)(void *)(told + 2 * size);
    both->sends = (int64_t *)both->pages[1];
    both->receives = both->sends + size;
    both->send_at = (int32_t *)(void *)(both->receives + size);
    both->sent = sent;
    for (i = 0; i < l->peer_count; i++) {
        both->sends[l->peer[i]] = l->send_count[i];
        both->receives[l->peer[i]] = l->receive_count[i];
    }
    st = dpari_pt_said(x->head.comm,
                       dpar_all_to_all(x->head.comm, both->sends, told, 1, DPAR_I64, NULL), why);
    for (i = 0; i < size && st == DPAR_OK; i++) {
        if (told[i] != both->receives[i]) {
            st = dpari_say(DPAR_E_MISMATCH, why,
                           "rank %d sends %ld values to rank %d, which receives %ld", i, told[i],
                           x->head.comm->rank, both->receives[i]);
        }
    }
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st == DPAR_OK) {
        dpari_pt_sort_lists(d, both, size);
    }
    return st;
}
