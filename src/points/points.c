/* SPDX-License-Identifier: MIT-0 */
/* Plans exchanges of points: checks the description, compares it between ranks, and divides memory.
 *
 * Ids become lists of local indices for both sides (points_owner.c), and lists become runs
 * (points_list.c). Peers that share memory find each other and exchange references to staging
 * memory. The file also converts ids, sorts rows, and writes reports. points_plan.h explains how
 * the exchange then runs. */
#include "points.h"

#include "../base/inner.h"
#include "../comm/agree.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/shm.h"
#include "points_list.h"
#include "points_owner.h"
#include "points_plan.h"
#include "points_wait.h"

/* ---- checks -----------------------------------------------------------------------------------
 */

/* Own ids are named one by one. */
static int dpari_pt_hashes(const dpar_points_desc *d)
{
    return !d->lists && d->own_id && d->own_count > 0;
}

static int64_t dpari_pt_named(const dpar_points_desc *d)
{
    return d->lists ? 0 : (dpari_pt_hashes(d) ? d->own_count : 0) + d->ghost_count;
}

/* One peer of the lists: s values go to those before it. */
static dpar_status dpari_pt_check_list(const dpar_comm *c, const dpar_points_desc *d, int32_t i,
                                       int64_t s, dpar_why *why)
{
    const dpar_points_lists *l = d->lists;
    int64_t k;
    int32_t j;
    if (l->peer[i] < 0 || l->peer[i] >= c->size || l->send_count[i] < 0 ||
        l->send_count[i] > INT32_MAX - s || l->receive_count[i] < 0 ||
        l->receive_count[i] > INT32_MAX) {
        return dpari_wrong(
            why, "peer %d, rank %d of %d: %ld values go to it, or how many come from it is wrong",
            i, l->peer[i], c->size, l->send_count[i]);
    }
    for (j = 0; j < i; j++) {
        if (l->peer[j] == l->peer[i]) {
            return dpari_wrong(why, "rank %d is twice among the peers: %d and %d", l->peer[i], j,
                               i);
        }
    }
    for (k = s; k < s + l->send_count[i]; k++) {
        if (l->send_index[k] < 0 || l->send_index[k] >= d->own_count) {
            return dpari_wrong(why, "send_index[%ld], to rank %d, is %d: own values are %ld ", k,
                               l->peer[i], l->send_index[k], d->own_count);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_pt_check_lists(const dpar_comm *c, const dpar_points_desc *d,
                                        dpar_why *why)
{
    const dpar_points_lists *l = d->lists;
    int64_t s = 0, r = 0, k;
    int32_t i;
    if (l->peer_count < 0 ||
        (l->peer_count > 0 && (!l->peer || !l->send_count || !l->receive_count))) {
        return dpari_wrong(why, "lists of %d peers: an array of them is NULL", l->peer_count);
    }
    for (i = 0; i < l->peer_count; i++) {
        dpar_status st;
        if (l->send_count[i] > 0 && !l->send_index) {
            return dpari_wrong(why, "send_index is NULL");
        }
        st = dpari_pt_check_list(c, d, i, s, why);
        if (st != DPAR_OK) {
            return st;
        }
        s += l->send_count[i];
        r += l->receive_count[i];
        if (r > d->ghost_count) {
            break;
        }
    }
    if (r != d->ghost_count) {
        return dpari_wrong(why, "%ld values are received, %ld sent: ghosts are %ld", r, s,
                           d->ghost_count);
    }
    for (k = 0; k < r && l->receive_index; k++) {
        if (l->receive_index[k] < d->own_count ||
            l->receive_index[k] >= d->own_count + d->ghost_count) {
            return dpari_wrong(why, "receive_index[%ld] is %d: ghosts are %ld to %ld", k,
                               l->receive_index[k], d->own_count,
                               d->own_count + d->ghost_count - 1);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_pt_check_rule(const dpar_comm *c, const dpar_points_desc *d, dpar_why *why)
{
    const int64_t own =
        dpar_layout_is_primary(d->layout, c->rank) ? dpar_layout_count(d->layout, c->rank) : 0;
    if (!d->own_id && own != d->own_count) {
        return dpari_wrong(why, "the layout gives rank %d %ld values, own_count is %ld", c->rank,
                           own, d->own_count);
    }
    return DPAR_OK;
}

/* Checks the description of this rank, except for the contents of own_id and ghost_id. */
static dpar_status dpari_pt_check(const dpar_comm *c, const dpar_points_desc *d, dpar_why *why)
{
    if (d->own_count < 0 || d->ghost_count < 0) {
        return dpari_wrong(why, "own_count is %ld, ghost_count %ld", d->own_count, d->ghost_count);
    }
    if (d->own_count > INT32_MAX || d->ghost_count > INT32_MAX - d->own_count) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld own values and %ld ghosts: %d together are possible", d->own_count,
                         d->ghost_count, (int32_t)INT32_MAX);
    }
    if (d->order < 0 || d->order > DPAR_POINTS_ORDER_BY_OWNER || d->method < 0 ||
        d->method > DPAR_POINTS_DIRECT || d->tag < 0 || d->run_bytes < 0) {
        return dpari_wrong(why, "order is %d, method %d, tag %d, run_bytes %ld", d->order,
                           d->method, d->tag, d->run_bytes);
    }
    if (c->mem && !c->node && !dpari_world_of(c)) {
        return dpari_wrong(
            why, "points: values are the host's, the communicator's memory is a device's");
    }
    if (d->lists) {
        return dpari_pt_check_lists(c, d, why);
    }
    if (d->ghost_count > 0 && !d->ghost_id) {
        return dpari_wrong(why, "ghost_id is NULL, ghost_count is %ld", d->ghost_count);
    }
    return d->layout ? dpari_pt_check_rule(c, d, why) : DPAR_OK;
}

/* Places where nothing or more than one value is received. seen: a bit a ghost, zeroed. */
static dpar_status dpari_pt_check_places(const dpar_points_desc *d, uint64_t *seen, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < d->ghost_count && d->lists->receive_index; k++) {
        const int64_t g = d->lists->receive_index[k] - d->own_count;
        if (seen[g / 64] >> g % 64 & 1) {
            return dpari_wrong(why, "receive_index names %ld twice", g + d->own_count);
        }
        seen[g / 64] |= UINT64_C(1) << g % 64;
    }
    return DPAR_OK;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static dpari_points *dpari_pt_layout(const dpar_points_desc *d, void *memory, int64_t *bytes)
{
    dpari_room r;
    dpari_points *x;
    dpari_pt_entry *entry;
    const int64_t bits = d->lists ? (d->ghost_count + 63) / 64 : 0;
    r.at = (unsigned char *)memory;
    r.used = 0;
    x = (dpari_points *)dpari_room_take(&r, 1, sizeof *x);
    entry = (dpari_pt_entry *)dpari_room_take(&r, dpari_pt_table_room(dpari_pt_named(d)) + bits,
                                              sizeof *entry);
    if (x) {
        x->table.entry = entry;
        x->table.mask = -1;
    }
    *bytes = r.used;
    return x;
}

/* ---- agreeing ---------------------------------------------------------------------------------
 */

typedef struct dpari_pt_given {
    const dpar_points_desc *d;
    int64_t all[5]; /* largest of all ranks: see dpari_pt_kinds */
} dpari_pt_given;

static DPARI_COLD void dpari_pt_state(dpari_facts *f, const void *given)
{
    const dpar_points_desc *d = ((const dpari_pt_given *)given)->d;
    f->of = NULL;
    dpari_fact(f, "lists (0: ids)", 0, d->lists != NULL);
    dpari_fact(f, "order", 0, d->order);
    dpari_fact(f, "method", 0, d->method);
    dpari_fact(f, "run_bytes", 0, d->run_bytes);
    dpari_fact(f, "tag", 0, d->tag);
    dpari_fact(f, "layout (0: none)", 0, d->layout != NULL);
    if (d->layout) {
        dpari_fact_hash(f, "the layout", 0, dpari_hash_layout(0, d->layout));
    }
}

/* What ranks that have points give: a rank without any says nothing. */
static dpar_status dpari_pt_kinds(dpar_comm *c, dpari_pt_given *g, dpar_why *why)
{
    const dpar_points_desc *d = g->d;
    dpar_status st;
    g->all[0] = d->own_count > 0 && d->own_id;
    g->all[1] = d->own_count > 0 && !d->own_id;
    g->all[2] = d->ghost_count > 0 && d->owner;
    g->all[3] = d->ghost_count > 0 && !d->owner;
    st = dpar_all_reduce(c, g->all, g->all, 4, DPAR_I64, DPAR_MAX, NULL);
    g->all[4] = d->own_count;
    st = st == DPAR_OK ? dpar_all_reduce(c, &g->all[4], &g->all[4], 1, DPAR_I64, DPAR_SUM, NULL)
                       : st;
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, c->why.text);
    }
    if (!d->lists && ((g->all[0] && g->all[1]) || (g->all[2] && g->all[3]))) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "points: %s is NULL on some ranks and given on others",
                         g->all[0] && g->all[1] ? "own_id" : "owner");
    }
    return DPAR_OK;
}

/* ---- planning ---------------------------------------------------------------------------------
 */

/* Numbers of all lists, and the peers. */
static int64_t dpari_pt_count_peers(const dpari_points *x, const dpari_pt_both *b, int32_t *peers)
{
    int64_t numbers = 0, s = 0, r = 0;
    dpari_pt_list l;
    int32_t i;
    *peers = 0;
    for (i = 0; i < x->head.comm->size; i++) {
        numbers += dpari_pt_measure(&l, b->send_at + s, b->sends[i]);
        numbers += dpari_pt_measure(&l, b->receive_at + r, b->receives[i]);
        s += b->sends[i];
        r += b->receives[i];
        *peers += b->sends[i] + b->receives[i] > 0;
    }
    return numbers;
}

/* Registered memory: line, peers, calls, works, records, lists. */
static dpar_status dpari_pt_alloc(dpari_points *x, int32_t peers, int64_t numbers, dpar_why *why)
{
    dpar_comm *of = x->world ? x->node : x->head.comm;
    void *memory = NULL;
    dpari_room r;
    dpar_status st;
    int32_t pass;
    r.at = NULL;
    for (pass = 0; pass < 2; pass++) {
        r.used = 0;
        x->line = (dpari_pt_line *)dpari_room_take(&r, 2, sizeof *x->line);
        x->peer = (dpari_pt_peer *)dpari_room_take(&r, peers, sizeof *x->peer);
        x->call = (dpar_call *)dpari_room_take(&r, 2 * peers, sizeof *x->call);
        x->work = (dpar_work *)dpari_room_take(&r, 2 * peers, sizeof *x->work);
        x->record = (dpari_pt_record *)dpari_room_take(&r, 2 * peers, sizeof *x->record);
        x->numbers = (int32_t *)dpari_room_take(&r, numbers, sizeof *x->numbers);
        if (pass == 0) {
            st = dpar_comm_alloc(of, r.used, &memory);
            if (st != DPAR_OK) {
                return dpari_repeat(st, why, of->why.text);
            }
            x->lists = r.at = (unsigned char *)memory;
        }
    }
    x->head.peer_count = peers;
    return DPAR_OK;
}

static void dpari_pt_set_list(dpari_pt_list *l, const int32_t *index, int64_t n, int32_t **at)
{
    const int64_t numbers = dpari_pt_measure(l, index, n);
    dpari_pt_fill(l, index, *at);
    *at += numbers;
}

static void dpari_pt_set_peers(dpari_points *x, const dpari_pt_both *b)
{
    int32_t i, n = 0, *at = x->numbers;
    for (i = 0; i < x->head.comm->size; i++) {
        dpari_pt_peer *p = &x->peer[n];
        if (b->sends[i] + b->receives[i] == 0) {
            continue;
        }
        p->rank = i;
        p->world = i == x->head.comm->rank ? 0 : -1;
        p->sends_before = x->sends;
        p->receives_before = x->receives;
        dpari_pt_set_list(&p->send, b->send_at + x->sends, b->sends[i], &at);
        dpari_pt_set_list(&p->receive, b->receive_at + x->receives, b->receives[i], &at);
        x->self = i == x->head.comm->rank ? n : x->self;
        x->sends += b->sends[i];
        x->receives += b->receives[i];
        n++;
    }
}

/* Finds the peers that share memory with this rank. Collective over the node. */
static dpar_status dpari_pt_find_node(dpari_points *x, dpar_why *why)
{
    const dpari_group *g = dpari_group_of(x->node);
    void *memory = NULL;
    int32_t *told, i, k;
    dpar_status st;
    if (!x->world) {
        return DPAR_OK;
    }
    st = dpar_comm_alloc(x->node, (int64_t)sizeof(int32_t) * x->node->size, &memory);
    st = dpari_agree_on(x->node, st, "points", NULL, NULL, NULL);
    told = (int32_t *)memory;
    if (st == DPAR_OK) {
        st = dpar_all_gather(x->node, &x->head.comm->rank, told, 1, DPAR_I32, NULL);
    }
    for (i = 0; i < x->node->size && st == DPAR_OK; i++) {
        for (k = 0; k < x->head.peer_count; k++) {
            if (x->peer[k].rank == told[i]) {
                x->peer[k].world = g->world_rank[i];
            }
        }
    }
    dpar_comm_release(x->node, memory);
    if (st != DPAR_OK && x->node != x->head.comm) { /* other nodes would wait for this one */
        dpar_comm_abort(x->head.comm, st, x->node->why.text);
    }
    return st == DPAR_OK ? st : dpari_repeat(st, why, x->node->why.text);
}

static void dpari_pt_say(const dpari_points *x, int32_t i, dpari_pt_record *r)
{
    const dpari_pt_peer *p = &x->peer[i];
    r->line = p->world >= 0 && x->world ? (int64_t)dpari_ref(x->world, x->line, 1) : 0;
    r->number = i;
    r->sends = p->send.count;
    r->receives = p->receive.count;
    r->sends_before = p->sends_before;
    r->receives_before = p->receives_before;
    r->runs = p->send.runs;
    r->kind = p->send.kind;
    r->first = p->send.first;
    r->at = r->line && p->send.at ? (int64_t)dpari_ref(x->world, p->send.at, 1) : 0;
}

/* Reads what a peer has published about its memory. */
static dpar_status dpari_pt_hear(dpari_points *x, int32_t i)
{
    dpari_pt_peer *p = &x->peer[i];
    const dpari_pt_record *r = &p->theirs;
    if (r->line == 0 || p->world < 0) { /* one of the two does not reach the other's memory */
        p->world = -1;
        x->messages_to++;
        return DPAR_OK;
    }
    x->shared++;
    x->oneway |= p->send.count == 0 || p->receive.count == 0;
    p->line = (dpari_pt_line *)dpari_at(x->world, (uint64_t)r->line);
    if (p->line == NULL) {
        return dpari_pt_unreachable(x, (uint64_t)r->line);
    }
    p->source.count = r->sends;
    p->source.runs = r->runs;
    p->source.kind = (int32_t)r->kind;
    p->source.first = (int32_t)r->first;
    p->source.step = 0;
    p->source.at = r->at ? (const int32_t *)dpari_at(x->world, (uint64_t)r->at) : NULL;
    return r->at && p->source.at == NULL ? dpari_pt_unreachable(x, (uint64_t)r->at) : DPAR_OK;
}

/* Exchanges references to staging memory with the peers. */
static dpar_status dpari_pt_swap(dpari_points *x, dpar_why *why)
{
    dpari_pt_record *mine = x->record, *theirs = x->record + x->head.peer_count;
    int32_t i, pass, n = 0;
    dpar_status st = DPAR_OK;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < x->head.peer_count; i++) {
            dpar_call *call = &x->call[n];
            if (i == x->self) {
                continue;
            }
            dpari_zero(call, sizeof *call);
            call->kind = pass ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call->type = DPAR_I64;
            call->root = x->peer[i].rank;
            call->tag = x->tag;
            call->count = DPARI_PT_WORDS;
            call->in = pass ? &mine[i] : NULL;
            call->out = pass ? NULL : &theirs[i];
            dpari_pt_say(x, i, &mine[i]);
            n++;
        }
    }
    if (n > 0) {
        st = dpar_batch(x->head.comm, x->call, n, x->work);
        st = st == DPAR_OK ? dpar_wait_all(x->work, n) : st;
    }
    for (i = 0; i < x->head.peer_count && st == DPAR_OK; i++) {
        if (i != x->self) {
            x->peer[i].theirs = theirs[i];
            st = dpari_pt_hear(x, i);
        }
    }
    return st == DPAR_OK ? st : dpari_repeat(st, why, x->head.comm->why.text);
}

static dpar_status dpari_pt_plan(dpari_points *x, const dpari_pt_both *both, dpar_why *why)
{
    int32_t peers;
    const int64_t numbers = dpari_pt_count_peers(x, both, &peers);
    dpar_status st = both->sent > INT32_MAX
                         ? dpari_say(DPAR_E_RANGE, why, "%ld values are sent: %d are possible",
                                     both->sent, (int32_t)INT32_MAX)
                         : dpari_pt_alloc(x, peers, numbers, why);
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st == DPAR_OK) {
        dpari_pt_set_peers(x, both);
        st = dpari_pt_find_node(x, why);
        st = st == DPAR_OK ? dpari_pt_swap(x, why) : st;
        st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    }
    if (st != DPAR_OK && x->lists) {
        dpar_comm_release(x->world ? x->node : x->head.comm, x->lists);
    }
    return st;
}

/* Sets *memory to what the plan may use: the caller's, or what is allocated here, which *owned then
 * is as well. */
static dpar_status dpari_pt_take_memory(dpar_comm *comm, const dpar_points_desc *desc, int64_t need,
                                        void **memory, void **owned, dpar_why *why)
{
    dpar_status status;
    if (desc->memory == NULL && desc->bytes == 0) {
        status = dpar_comm_alloc(comm, need, owned);
        *memory = *owned;
        return dpari_pt_said(comm, status, why);
    }
    if (desc->bytes < need) {
        return dpari_say(DPAR_E_ROOM, why,
                         "points: desc.bytes is %ld, but the plan needs %ld bytes of memory",
                         desc->bytes, need);
    }
    if (desc->memory == NULL || (uintptr_t)desc->memory % DPARI_ROOM_ALIGN != 0) {
        return dpari_wrong(
            why,
            "points: desc.memory is NULL, or not aligned to %d bytes, but desc.bytes "
            "is %ld",
            (int32_t)DPARI_ROOM_ALIGN, desc->bytes);
    }
    *memory = desc->memory;
    return DPAR_OK;
}

static void dpari_pt_set(dpari_points *x, dpar_comm *c, const dpari_pt_given *g)
{
    const dpar_points_desc *d = g->d;
    x->head.comm = c;
    x->head.own_count = d->own_count;
    x->head.ghost_count = d->ghost_count;
    x->head.global_count = g->all[4];
    x->node = c->node ? c->node : c;
    x->world = d->method == DPAR_POINTS_MESSAGES ? NULL : dpari_world_of(x->node);
    x->way = d->method;
    x->tag = d->tag;
    x->timers = d->timers;
    x->listed = d->lists != NULL;
    x->hashed = !d->lists && g->all[0] != 0;
    x->given_owner = g->all[2] != 0;
    x->run_bytes = d->run_bytes > 0 ? d->run_bytes : (int64_t)DPARI_PT_RUN_BYTES;
    x->self = -1;
    if (d->layout) {
        x->rule = *d->layout;
        x->ruled = 1;
    }
}

/* Finds the lists of both sides, and makes the plan of them. */
static dpar_status dpari_pt_connect(dpari_points *x, const dpar_points_desc *desc, dpar_why *why)
{
    dpari_pt_both both;
    dpar_status status;
    dpari_zero(&both, sizeof both);
    if (desc->lists) {
        status = dpari_pt_check_places(desc, (uint64_t *)(void *)x->table.entry, why);
        status = dpari_agree_on(x->head.comm, status, "points", NULL, NULL, why);
        if (status == DPAR_OK) {
            status = dpari_pt_by_lists(x, desc, &both, why);
        }
    } else {
        status = dpari_pt_by_ids(x, desc, &both, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pt_plan(x, &both, why);
    }
    dpari_pt_both_free(&both);
    return status;
}

/* Checks what this rank passes, and takes the memory of the plan. Local. */
static dpar_status dpari_pt_prepare(dpar_comm *comm, const dpar_points_desc *desc,
                                    dpar_points **points, int64_t *need, void **memory,
                                    void **owned, dpar_why *why)
{
    dpar_status status;
    if (!desc || !points) {
        return dpari_wrong(why, "dpar_points_make: desc or points is NULL");
    }
    status = dpari_pt_check(comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpari_pt_layout(desc, NULL, need);
    return dpari_pt_take_memory(comm, desc, *need, memory, owned, why);
}

DPAR_API DPARI_COLD dpar_status dpar_points_make(dpar_comm *comm, const dpar_points_desc *desc,
                                                 dpar_points **points, dpar_why *why)
{
    dpari_pt_given given;
    dpari_points *x;
    void *memory = NULL, *owned = NULL;
    int64_t need = 0;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_make: comm is NULL");
    }
    dpari_zero(&given, sizeof given);
    given.d = desc;
    status = dpari_pt_prepare(comm, desc, points, &need, &memory, &owned, why);
    status = dpari_agree_on(comm, status, "points", dpari_pt_state, &given, why);
    if (status == DPAR_E_ROOM) {
        dpari_needs_bytes(why, need); /* of this rank, also if another one has too little */
    }
    if (status == DPAR_OK) {
        status = dpari_pt_kinds(comm, &given, why);
    }
    if (status == DPAR_OK) {
        dpari_zero(memory, (size_t)need);
        x = dpari_pt_layout(desc, memory, &need);
        x->owned = owned;
        dpari_pt_set(x, comm, &given);
        status = dpari_pt_connect(x, desc, why);
    }
    if (status != DPAR_OK) {
        dpar_comm_release(comm, owned);
        return status;
    }
    *points = &x->head;
    return DPAR_OK;
}

/* ---- numbering --------------------------------------------------------------------------------
 */

DPAR_API dpar_status dpar_points_to_local(const dpar_points *p, const int64_t *ids, int64_t n,
                                          int32_t *at)
{
    const dpari_points *x = dpari_pt_of(p);
    int64_t i, lost = -1;
    if (!p) {
        return DPAR_E_ARG;
    }
    if (x->listed || (n > 0 && (!ids || !at))) {
        return dpari_comm_wrong(
            p->comm, "points have no ids (planned by lists: %d), or an array is NULL", x->listed);
    }
    for (i = 0; i < n; i++) {
        at[i] = (int32_t)dpari_pt_index(x, ids[i]);
        lost = at[i] < 0 && lost < 0 ? i : lost;
    }
    return lost < 0
               ? DPAR_OK
               : dpari_comm_wrong(p->comm, "ids[%ld] is %ld: rank %d neither owns nor reads it",
                                  lost, ids[lost], p->comm->rank);
}

/* Tests whether row i reads a ghost. Returns 1, 0, or -1 if a column is no local index. */
static int dpari_pt_reads_ghost(const dpar_points *p, const int64_t *begin, const int32_t *column,
                                int64_t i)
{
    int64_t k;
    int reads = 0;
    for (k = begin[i]; k < begin[i + 1]; k++) {
        if (column[k] < 0 || column[k] >= p->own_count + p->ghost_count) {
            return -1;
        }
        reads |= column[k] >= p->own_count;
    }
    return reads;
}

DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *p, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *core)
{
    int64_t i, n = 0, rim;
    if (!p) {
        return DPAR_E_ARG;
    }
    if (rows < 0 || rows > INT32_MAX || !core || (rows > 0 && (!begin || !row))) {
        return dpari_comm_wrong(p->comm, "%ld rows, or begin, row or core is NULL", rows);
    }
    for (i = 0; i < rows; i++) {
        const int reads = begin[i + 1] < begin[i] || (begin[i + 1] > begin[i] && !column)
                              ? -1
                              : dpari_pt_reads_ghost(p, begin, column, i);
        if (reads < 0) {
            return dpari_comm_wrong(
                p->comm, "row %ld (columns %ld to %ld) names what is no local index below %ld", i,
                begin[i], begin[i + 1] - 1, p->own_count + p->ghost_count);
        }
        n += !reads;
    }
    *core = n;
    rim = n;
    for (i = 0, n = 0; i < rows; i++) {
        if (dpari_pt_reads_ghost(p, begin, column, i)) {
            row[rim++] = (int32_t)i;
        } else {
            row[n++] = (int32_t)i;
        }
    }
    return DPAR_OK;
}

/* ---- what goes where --------------------------------------------------------------------------
 */

DPAR_API int dpar_points_peer(const dpar_points *p, int32_t k, dpar_points_traffic *t)
{
    const dpari_points *x = dpari_pt_of(p);
    if (!p || !t || k < 0 || k >= p->peer_count) {
        return 0;
    }
    t->rank = x->peer[k].rank;
    t->method = x->peer[k].world < 0 ? DPAR_POINTS_MESSAGES : DPAR_POINTS_PACKED;
    t->send_count = x->peer[k].send.count;
    t->receive_count = x->peer[k].receive.count;
    t->send_runs = x->peer[k].send.runs;
    t->receive_runs = x->peer[k].receive.runs;
    return 1;
}

DPAR_API DPARI_COLD void dpar_points_report(const dpar_points *p, dpar_text *out)
{
    const dpari_points *x = dpari_pt_of(p);
    dpar_points_traffic t;
    int32_t k;
    if (!p) {
        return;
    }
    dpari_text_print(out, "rank %d: %ld own values, %ld ghosts, %ld exchanges\n", p->comm->rank,
                     p->own_count, p->ghost_count, x->count);
    dpar_text_put(out, "  rank way          sends      runs  receives      runs\n");
    for (k = 0; dpar_points_peer(p, k, &t); k++) {
        dpari_text_print(out, "%6d %-8s %9ld %9ld %9ld %9ld\n", t.rank,
                         k == x->self                       ? "itself"
                         : t.method == DPAR_POINTS_MESSAGES ? "messages"
                                                            : "memory",
                         t.send_count, t.send_runs, t.receive_count, t.receive_runs);
    }
    if (x->timers && x->count > 0) {
        dpari_text_print(out, "us an exchange: packing %.2f, copying %.2f, waiting %.2f\n",
                         x->seconds[DPARI_PT_PACKING] * 1e6 / (double)x->count,
                         x->seconds[DPARI_PT_COPYING] * 1e6 / (double)x->count,
                         x->seconds[DPARI_PT_WAITING] * 1e6 / (double)x->count);
    }
}

enum { DPARI_PT_DRAWN = 64 };

DPAR_API DPARI_COLD dpar_status dpar_points_draw(const dpar_points *p, dpar_text *out)
{
    const dpari_points *x = dpari_pt_of(p);
    int64_t row[DPARI_PT_DRAWN] = {0}, *all;
    void *memory = NULL;
    dpar_comm *c;
    dpar_status st;
    int32_t i, k;
    if (!p) {
        return DPAR_E_ARG;
    }
    c = p->comm;
    if (c->size > DPARI_PT_DRAWN) {
        return dpari_comm_say(c, DPAR_E_RANGE, "%d ranks: a matrix of %d is drawn", c->size,
                              (int32_t)DPARI_PT_DRAWN);
    }
    for (i = 0; i < p->peer_count; i++) {
        row[x->peer[i].rank] = x->peer[i].send.count;
    }
    st = dpar_comm_alloc(c, (int64_t)sizeof *row * c->size * c->size, &memory);
    st = dpari_agree_on(c, st, "points", NULL, NULL, NULL);
    all = (int64_t *)memory;
    st = st == DPAR_OK ? dpar_all_gather(c, row, all, c->size, DPAR_I64, NULL) : st;
    for (i = -1; i < c->size && st == DPAR_OK && out; i++) {
        if (i < 0) {
            dpar_text_put(out, "values from\\to");
        } else {
            dpari_text_print(out, "%14d", i);
        }
        for (k = 0; k < c->size; k++) {
            if (i < 0) {
                dpari_text_print(out, " %9d", k);
            } else if (all[i * c->size + k] == 0) {
                dpar_text_put(out, "         .");
            } else {
                dpari_text_print(out, " %9ld", all[i * c->size + k]);
            }
        }
        dpar_text_put(out, "\n");
    }
    dpar_comm_release(c, memory);
    return st;
}
