/* SPDX-License-Identifier: MIT-0 */
/* Runs exchanges of points: begin, test and end, forward and adjoint.
 *
 * points_plan.h has the protocol. Values are packed peer after peer into staging memory, published
 * by `ready` or posted as messages, and taken into ghosts, or combined into owners in the order of
 * ranks. Long runs in registered memory are read in place. */
#include "points.h"

#include "../base/inner.h"
#include "../comm/agree.h"
#include "../comm/elements.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "points_list.h"
#include "points_plan.h"
#include "points_wait.h"

enum { DPARI_PT_TAKING, DPARI_PT_LEAVING };

/* ---- vectors ----------------------------------------------------------------------------------
 */

/* A vector as the caller names it: E_ARG with a message in c->why. */
static dpar_status dpari_pt_check_vector(const dpari_points *x, const dpar_points_field *v,
                                         int32_t i)
{
    dpar_comm *c = x->head.comm;
    const int32_t n = v->components > 0 ? v->components : 1;
    const int64_t own = x->head.own_count, all = own + x->head.ghost_count;
    if (dpar_type_bytes(v->type) == 0 || v->components < 0 || v->components > 1 << 20) {
        return dpari_comm_wrong(c, "vector %d: %d components of %s", i, v->components,
                                dpar_type_name(v->type));
    }
    if (v->stride < 0 || v->component_stride < 0 || v->stride > INT64_C(1) << 31 ||
        v->component_stride > INT64_C(1) << 40 ||
        (v->component_stride <= 1 && v->stride > 0 && v->stride < n)) {
        return dpari_comm_wrong(c, "vector %d: stride %ld, component_stride %ld for %d components",
                                i, v->stride, v->component_stride, n);
    }
    if ((!v->data && (own > 0 || (all > 0 && !v->ghosts))) ||
        (!v->ghosts && !v->data && all > own)) {
        return dpari_comm_wrong(c, "vector %d: data is NULL, %ld values lie there", i,
                                v->ghosts ? own : all);
    }
    return DPAR_OK;
}

static void dpari_pt_place_vector(const dpari_points *x, const dpar_points_field *v,
                                  dpari_pt_vector *to)
{
    to->own = (unsigned char *)v->data;
    to->ghosts = v->ghosts ? (unsigned char *)v->ghosts
                           : (v->data ? to->own + x->head.own_count * to->stride : NULL);
}

static void dpari_pt_set_vector(const dpari_points *x, const dpar_points_field *v,
                                dpari_pt_vector *to)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    const int32_t n = v->components > 0 ? v->components : 1;
    const int together = v->component_stride <= 1;
    const int64_t stride = v->stride > 0 ? v->stride : together ? n : 1;
    to->type = v->type;
    to->pieces = together ? 1 : n;
    to->numbers = together ? n : 1;
    to->size = bytes * to->numbers;
    to->point = bytes * n;
    to->stride = bytes * stride;
    to->component = together ? bytes : bytes * v->component_stride;
    dpari_pt_place_vector(x, v, to);
    to->ref = 0;
    if (x->shared > 0 && x->way != DPAR_POINTS_PACKED && v->data) {
        to->ref = dpari_ref(x->world, v->data, 1);
    }
}

/* Returns the bytes at the beginning of a turn, which hold the vectors' places. Packed values
 * follow. */
static int64_t dpari_pt_places_bytes(int64_t n)
{
    const int64_t bytes = n * (int64_t)sizeof(dpari_pt_place);
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

static int64_t dpari_pt_packed_bytes(const dpari_points *x, int64_t n, int64_t point)
{
    return dpari_pt_begins(dpari_most(x->sends, x->receives), x->head.peer_count, point, n) +
           DPARI_LINE;
}

/* Waits until peers have taken what they were given in exchange `last`. */
static dpar_status dpari_pt_await_done(dpari_points *x, int64_t last)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->head.peer_count && st == DPAR_OK && last > 0; i++) {
        if (x->peer[i].world >= 0 && i != x->self && x->peer[i].seen <= last) {
            st = dpari_pt_await(x, i, &x->peer[i].line->done, (uint64_t)last, 1);
        }
    }
    return st;
}

/* Staging memory for n vectors of so many bytes a point. */
static DPARI_COLD dpar_status dpari_pt_grow(dpari_points *x, int64_t n, int64_t point)
{
    const int64_t head = dpari_room_up(n * (int64_t)sizeof(dpari_pt_vector)) + DPARI_LINE;
    const int64_t places = dpari_pt_places_bytes(n), packed = dpari_pt_packed_bytes(x, n, point);
    const int64_t vectors = (head + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
    const int beside = x->messages_to > 0; /* what arrives, and what is packed beside */
    dpar_comm *of = x->world ? x->node : x->head.comm;
    void *memory = NULL;
    dpar_status st = dpari_pt_await_done(x, x->count);
    if (st != DPAR_OK) {
        return st;
    }
    dpar_comm_release(of, x->staging);
    x->staging = NULL;
    st = dpar_comm_alloc(of, vectors + 2 * (places + packed) + (beside + 1) * packed, &memory);
    if (st != DPAR_OK) {
        dpar_why why = of->why;
        return dpari_comm_wrong_all(x->head.comm, st, &why);
    }
    x->staging = (unsigned char *)memory;
    x->vector = (dpari_pt_vector *)memory;
    x->staging_vectors = n;
    x->staging_turn = places + packed;
    x->turns = x->staging + vectors;
    x->aside = x->turns + 2 * x->staging_turn;
    x->arrivals = x->aside + packed;
    if (x->shared > 0) {
        x->line->turns = dpari_ref(x->world, x->turns, 1);
        x->line->turn_bytes = x->staging_turn;
    }
    return DPAR_OK;
}

/* What ranks must name alike. */
static uint64_t dpari_pt_kind(const dpari_points *x, const dpar_points_field *v, int32_t n)
{
    uint64_t h = dpari_hash(0, n);
    int32_t i;
    for (i = 0; i < n; i++) {
        h = dpari_hash(h, v[i].type + 64 * (int64_t)(v[i].components > 0 ? v[i].components : 1));
    }
    return (h & (DPARI_PT_KIND - DPARI_PT_OP)) | (uint64_t)(!x->adjoint         ? 0
                                                            : x->op == DPAR_SUM ? 1
                                                            : x->op == DPAR_MAX ? 2
                                                                                : 3);
}

/* True if there is one vector, with the type, components and strides of the one before, so that it
 * need not be checked again. Its address may differ. (Plans whose peers read in place are excluded,
 * because memory at the same address may be other memory by now.) */
static int dpari_pt_is_named(const dpari_points *x, const dpar_points_field *v, int32_t n)
{
    const dpar_points_field *a = &x->named;
    return n == 1 && x->vectors == 1 && x->shared == 0 && v && v->data && v->type == a->type &&
           !v->ghosts == !a->ghosts && v->components == a->components && v->stride == a->stride &&
           v->component_stride == a->component_stride;
}

/* Checks and stores the vectors that the caller passes. */
static dpar_status dpari_pt_name(dpari_points *x, const dpar_points_field *v, int32_t n)
{
    dpar_comm *c = x->head.comm;
    dpar_status st = DPAR_OK;
    int64_t point = 0;
    int32_t i;
    if (dpari_pt_is_named(x, v, n)) {
        dpari_pt_place_vector(x, v, x->vector);
        return DPAR_OK;
    }
    x->named.type = DPAR_TYPE_NONE;
    x->again = 0;
    if (n < 1 || n > DPARI_PT_MOST || !v) {
        return dpari_comm_wrong(c, "points exchange of %d vectors: 1 to %d are possible", v ? n : 0,
                                (int32_t)DPARI_PT_MOST);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_pt_check_vector(x, &v[i], i);
        point += st == DPAR_OK
                     ? dpar_type_bytes(v[i].type) * (v[i].components > 0 ? v[i].components : 1)
                     : 0;
    }
    if (st == DPAR_OK &&
        (n > x->staging_vectors ||
         dpari_pt_places_bytes(n) + dpari_pt_packed_bytes(x, n, point) > x->staging_turn)) {
        st = dpari_pt_grow(x, n, point);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        dpari_pt_set_vector(x, &v[i], &x->vector[i]);
    }
    x->vectors = n;
    x->point = point;
    if (st == DPAR_OK && n == 1) {
        x->named = v[0];
    }
    return st;
}

/* ---- giving -----------------------------------------------------------------------------------
 */

/* Messages have left when an exchange ends: they alone need no second turn. */
static unsigned char *dpari_pt_turn(const dpari_points *x)
{
    return x->turns + (x->shared > 0 ? x->count & 1 : 0) * x->staging_turn;
}

static unsigned char *dpari_pt_packed(const dpari_points *x)
{
    return dpari_pt_turn(x) + dpari_pt_places_bytes(x->vectors);
}

/* Returns where the values that this rank packs for a peer begin, counted over all peers, */
static int64_t dpari_pt_out_at(const dpari_points *x, int32_t i)
{
    const dpari_pt_peer *p = &x->peer[i];
    return dpari_pt_begins(x->adjoint ? p->receives_before : p->sends_before, i, x->point,
                           x->vectors);
}

/* and where a peer has packed those for this rank, in the peer's memory. */
static int64_t dpari_pt_in_at(const dpari_points *x, int32_t i)
{
    const dpari_pt_record *r = &x->peer[i].theirs;
    return dpari_pt_begins(x->adjoint ? r->receives_before : r->sends_before, r->number, x->point,
                           x->vectors);
}

/* The list that a rank gives by, and takes by. */
static const dpari_pt_list *dpari_pt_gives(const dpari_points *x, const dpari_pt_peer *p)
{
    return x->adjoint ? &p->receive : &p->send;
}

static const dpari_pt_list *dpari_pt_takes(const dpari_points *x, const dpari_pt_peer *p)
{
    return x->adjoint ? &p->send : &p->receive;
}

static dpari_pt_side dpari_pt_side_of(const dpari_pt_vector *v, int ghosts, int32_t piece)
{
    dpari_pt_side s;
    s.at = (ghosts ? v->ghosts : v->own) + piece * v->component;
    s.stride = v->stride;
    return s;
}

static dpari_pt_side dpari_pt_dense_side(const dpari_pt_vector *v, unsigned char *at, int32_t piece)
{
    dpari_pt_side s;
    s.at = at + piece * v->size;
    s.stride = v->point;
    return s;
}

/* All of a message is one piece of the vector: it need not be packed. */
static int dpari_pt_is_whole(const dpari_points *x, const dpari_pt_list *l)
{
    return x->vectors == 1 && l->kind == DPARI_PT_ONE && x->vector[0].pieces == 1 &&
           x->vector[0].stride == x->vector[0].size;
}

/* Returns the packed bytes of `values` values of all vectors. */
static int64_t dpari_pt_bytes(const dpari_points *x, int64_t values)
{
    int64_t bytes = 0;
    int32_t i;
    if (x->vectors == 1) {
        return values * x->point;
    }
    for (i = 0; i < x->vectors && values > 0; i++) {
        bytes += dpari_pt_block(values, x->vector[i].point);
    }
    return bytes;
}

/* True if a peer reads this vector in place. */
static int dpari_pt_lends(const dpari_points *x, const dpari_pt_peer *p, const dpari_pt_vector *v)
{
    return !x->adjoint && p->world >= 0 &&
           dpari_pt_is_direct(x, v->ref, v->size, p->send.count, p->send.runs);
}

/* Prefetches all these lines of 64 bytes for writing. If only one line of a pair were prefetched,
 * the hardware would fetch the other one for reading only, and a write to it would wait twice
 * (measured: 4.5 us instead of 2.5 for 8 KiB). */
static void dpari_pt_own_lines(const unsigned char *at, int64_t bytes)
{
#if defined(__GNUC__)
    int64_t k;
    for (k = 0; k < bytes; k += 64) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(at[k]));
#else
        __builtin_prefetch(at + k, 1);
#endif
    }
#else
    (void)at;
    (void)bytes;
#endif
}

/* Into memory that another core read before: its cache has the lines, which come a bite ahead of
 * the copy. Scattered values are first gathered beside, then written at once. */
static void dpari_pt_pack_shared(const dpari_points *x, const dpari_pt_vector *v,
                                 const dpari_pt_list *l, dpari_pt_side mine, unsigned char *to)
{
    const int64_t all = l->count * v->size, bite = dpari_most(DPARI_PT_BITE / v->size, 1);
    const int beside = l->kind == DPARI_PT_EACH || v->stride != v->size;
    dpari_pt_list part = *l;
    int64_t k;
    dpari_pt_own_lines(to, dpari_least(all, bite * v->size));
    for (k = 0; k < l->count; k += part.count) {
        const int64_t at = k * v->size, next = at + bite * v->size;
        dpari_pt_list dense;
        part.count = dpari_least(bite, l->count - k);
        part.at = l->kind == DPARI_PT_EACH ? l->at + k : NULL;
        part.first = (int32_t)(l->first + k * (l->step != 0 ? l->step : 1));
        dense = dpari_pt_dense(part.count);
        dpari_pt_own_lines(to + next, dpari_least(all - next, bite * v->size));
        dpari_pt_move(&dense, dpari_pt_dense_side(v, beside ? x->aside : to + at, 0), &part, mine,
                      v->size);
        if (beside) {
            dpari_elements_bits(to + at, x->aside, (size_t)(part.count * v->size));
        }
    }
}

/* A vector into what is packed for a peer, which may share the memory. */
static void dpari_pt_pack_vector(dpari_points *x, const dpari_pt_vector *v, const dpari_pt_list *l,
                                 unsigned char *to, int shared)
{
    const dpari_pt_list dense = dpari_pt_dense(l->count);
    const int bites = shared && l->kind != DPARI_PT_RUNS && v->pieces == 1;
    const int aside = shared && !bites;
    int32_t piece;
    for (piece = 0; piece < v->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(v, x->adjoint, piece);
        if (bites) {
            dpari_pt_pack_shared(x, v, l, mine, to);
        } else {
            dpari_pt_move(&dense, dpari_pt_dense_side(v, aside ? x->aside : to, piece), l, mine,
                          v->size);
        }
        if (x->adjoint) {
            dpari_pt_clear(l, mine, v->size);
        }
    }
    if (aside) {
        dpari_elements_bits(to, x->aside, (size_t)(l->count * v->point));
    }
}

/* Packs what peer i gets of the vectors, but for those that it reads where they lie. Returns where.
 */
static unsigned char *dpari_pt_pack(dpari_points *x, int32_t i)
{
    dpari_pt_peer *p = &x->peer[i];
    const dpari_pt_list *l = dpari_pt_gives(x, p);
    unsigned char *const out = dpari_pt_packed(x) + dpari_pt_out_at(x, i), *to = out;
    int32_t k;
    p->reads = 0;
    for (k = 0; k < x->vectors && l->count > 0; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        if (dpari_pt_lends(x, p, v)) {
            p->reads = 1;
        } else {
            dpari_pt_pack_vector(x, v, l, to, p->world >= 0 && i != x->self);
        }
        to += x->vectors == 1 ? 0 : dpari_pt_block(l->count, v->point);
    }
    return out;
}

/* Publishes that all is packed, and the references of vectors that are read in place. */
static void dpari_pt_tell(dpari_points *x)
{
    dpari_pt_place *place = (dpari_pt_place *)(void *)dpari_pt_turn(x);
    uint64_t word = (uint64_t)x->count << 16 | x->kind;
    int32_t i, k;
    for (i = 0; i < x->head.peer_count; i++) {
        word |= x->peer[i].reads ? (uint64_t)DPARI_PT_LENT : 0;
    }
    for (k = 0; k < x->vectors && (word & DPARI_PT_LENT); k++) {
        place[k].ref = x->vector[k].ref;
        place[k].stride = x->vector[k].stride;
        place[k].component = x->vector[k].component;
        place[k].size = x->vector[k].size;
    }
    dpari_publish(x->world, &x->line->ready, word);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static void dpari_pt_call(dpari_points *x, int32_t n, const dpari_pt_peer *p, int32_t kind,
                          unsigned char *at, int64_t bytes)
{
    dpar_call *call = &x->call[n]; /* zero but for what is said here */
    call->kind = kind;
    call->type = DPAR_U8;
    call->root = p->rank;
    call->tag = x->tag;
    call->count = bytes;
    call->in = kind == DPAR_CALL_SEND ? at : NULL;
    call->out = kind == DPAR_CALL_SEND ? NULL : at;
}

/* Receives come first, so that what arrives has its place: into the ghosts where they are one
 * piece. */
static dpar_status dpari_pt_receive(dpari_points *x)
{
    int32_t i, n = 0;
    for (i = 0; i < x->head.peer_count; i++) {
        dpari_pt_peer *p = &x->peer[i];
        const dpari_pt_list *l = dpari_pt_takes(x, p);
        if (p->world >= 0 || l->count == 0) {
            continue;
        }
        p->in_place = !x->adjoint && dpari_pt_is_whole(x, l);
        p->arrives = p->in_place ? x->vector[0].ghosts + l->first * x->vector[0].stride
                                 : x->arrivals + dpari_pt_begins(x->adjoint ? p->sends_before
                                                                            : p->receives_before,
                                                                 i, x->point, x->vectors);
        dpari_pt_call(x, n++, p, DPAR_CALL_RECV, p->arrives, dpari_pt_bytes(x, l->count));
    }
    x->receives_posted = n;
    return n > 0 ? dpari_batch_checked(x->head.comm, x->call, n, x->work) : DPAR_OK;
}

/* Packs for those that get messages, and sends. */
static dpar_status dpari_pt_send(dpari_points *x)
{
    int32_t i, n = x->receives_posted;
    for (i = 0; i < x->head.peer_count; i++) {
        dpari_pt_peer *p = &x->peer[i];
        const dpari_pt_list *l = dpari_pt_gives(x, p);
        unsigned char *from;
        if (p->world >= 0 || l->count == 0) {
            continue;
        }
        if (!x->adjoint && dpari_pt_is_whole(x, l)) {
            from = x->vector[0].own + l->first * x->vector[0].stride;
        } else {
            from = dpari_pt_pack(x, i);
        }
        dpari_pt_call(x, n++, p, DPAR_CALL_SEND, from, dpari_pt_bytes(x, l->count));
    }
    x->sends_posted = n - x->receives_posted;
    return x->sends_posted > 0 ? dpari_batch_checked(x->head.comm, x->call + x->receives_posted,
                                                     x->sends_posted, x->work + x->receives_posted)
                               : DPAR_OK;
}

/* ---- messages of the exchange before, posted again --------------------------------------------
 *
 * A solver runs one exchange over and over: forward, of one vector, by messages alone, into ghosts
 * that lie in one piece each. Its calls stay; where the vector lies is put into them. */

static int dpari_pt_may_repeat(const dpari_points *x)
{
    int32_t i;
    for (i = 0; i < x->head.peer_count; i++) {
        if (x->peer[i].world >= 0 || (x->peer[i].receive.count > 0 && !x->peer[i].in_place)) {
            return 0;
        }
    }
    return x->vectors == 1 && x->vector[0].pieces == 1 && !x->adjoint;
}

static dpar_status dpari_pt_post_again(dpari_points *x)
{
    const dpari_pt_vector *v = x->vector;
    dpar_call *call = x->call;
    dpar_status st;
    int32_t i;
    for (i = 0; i < x->head.peer_count; i++) {
        const dpari_pt_list *l = &x->peer[i].receive;
        x->peer[i].taken = 0;
        if (l->count > 0) {
            call++->out = v->ghosts + l->first * v->stride;
        }
    }
    st = dpari_batch_checked(x->head.comm, x->call, x->receives_posted, x->work);
    for (i = 0; i < x->head.peer_count && st == DPAR_OK; i++) {
        const dpari_pt_list *l = &x->peer[i].send;
        if (l->count > 0 && dpari_pt_is_whole(x, l)) {
            call++->in = v->own + l->first * v->stride;
        } else if (l->count > 0) {
            const dpari_pt_list dense = dpari_pt_dense(l->count);
            unsigned char *to = (unsigned char *)(uintptr_t)call++->in;
            dpari_pt_move(&dense, dpari_pt_dense_side(v, to, 0), l, dpari_pt_side_of(v, 0, 0),
                          v->size);
        }
    }
    return st != DPAR_OK ? st
                         : dpari_batch_checked(x->head.comm, x->call + x->receives_posted,
                                               x->sends_posted, x->work + x->receives_posted);
}

/* ---- taking -----------------------------------------------------------------------------------
 */

/* What was packed, into ghosts, or combined with own values. */
static void dpari_pt_unpack(const dpari_points *x, const dpari_pt_peer *p, unsigned char *from)
{
    const dpari_pt_list *l = dpari_pt_takes(x, p);
    const dpari_pt_list dense = dpari_pt_dense(l->count);
    int32_t k, piece;
    for (k = 0; k < x->vectors; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        for (piece = 0; piece < v->pieces; piece++) {
            const dpari_pt_side mine = dpari_pt_side_of(v, !x->adjoint, piece);
            const dpari_pt_side theirs = dpari_pt_dense_side(v, from, piece);
            if (x->adjoint) {
                dpari_pt_combine(l, mine, theirs, v->numbers, v->type, x->op);
            } else {
                dpari_pt_move(l, mine, &dense, theirs, v->size);
            }
        }
        from += x->vectors == 1 ? 0 : dpari_pt_block(l->count, v->point);
    }
}

/* A vector of the giver, read where it lies by its list: in the shorter passes of both. */
static dpar_status dpari_pt_read(dpari_points *x, const dpari_pt_peer *p, const dpari_pt_vector *v,
                                 const dpari_pt_place *place)
{
    const int64_t size = dpari_least(v->size, place->size);
    unsigned char *at = (unsigned char *)dpari_at(x->world, place->ref);
    dpari_pt_side theirs;
    int32_t piece;
    if (at == NULL) {
        return dpari_pt_unreachable(x, place->ref);
    }
    for (piece = 0; piece < v->point / size; piece++) {
        theirs.at = at + piece * place->component;
        theirs.stride = place->stride;
        dpari_pt_move(&p->receive, dpari_pt_side_of(v, 1, piece), &p->source, theirs, size);
    }
    return DPAR_OK;
}

/* The turn of a peer that is ready; NULL: there are no addresses for it. */
static unsigned char *dpari_pt_their_turn(const dpari_points *x, dpari_pt_peer *p)
{
    if (p->turns != p->line->turns) {
        p->at = (unsigned char *)dpari_at(x->world, p->line->turns);
        if (p->at == NULL) {
            return NULL;
        }
        p->turns = p->line->turns;
    }
    return p->at + (x->count & 1) * p->line->turn_bytes;
}

/* From a rank that shares memory and is ready. */
static dpar_status dpari_pt_take_shared(dpari_points *x, int32_t i)
{
    dpari_pt_peer *p = &x->peer[i];
    unsigned char *turn = dpari_pt_their_turn(x, p);
    const dpari_pt_place *place = (const dpari_pt_place *)(const void *)turn;
    unsigned char *from;
    const dpari_pt_list dense = dpari_pt_dense(p->receive.count);
    int32_t k, piece;
    dpar_status st = DPAR_OK;
    if (turn == NULL) {
        return dpari_pt_unreachable(x, p->line->turns);
    }
    from = turn + dpari_pt_places_bytes(x->vectors) + dpari_pt_in_at(x, i);
    if (x->adjoint) {
        dpari_pt_unpack(x, p, from);
        return DPAR_OK;
    }
    for (k = 0; k < x->vectors && p->receive.count > 0 && st == DPAR_OK; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        if (p->lends &&
            dpari_pt_is_direct(x, place[k].ref, place[k].size, p->source.count, p->source.runs)) {
            st = dpari_pt_read(x, p, v, &place[k]);
        } else {
            for (piece = 0; piece < v->pieces; piece++) {
                dpari_pt_move(&p->receive, dpari_pt_side_of(v, 1, piece), &dense,
                              dpari_pt_dense_side(v, from, piece), v->size);
            }
        }
        from += x->vectors == 1 ? 0 : dpari_pt_block(p->receive.count, v->point);
    }
    return st;
}

/* This rank's own values that it reads as ghosts: at once, or of an adjoint out of what it packed.
 */
static void dpari_pt_take_self(dpari_points *x)
{
    const dpari_pt_peer *p = &x->peer[x->self];
    int32_t k, piece;
    if (x->adjoint) {
        dpari_pt_unpack(x, p, dpari_pt_packed(x) + dpari_pt_out_at(x, x->self));
        return;
    }
    for (k = 0; k < x->vectors; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        for (piece = 0; piece < v->pieces; piece++) {
            dpari_pt_move(&p->receive, dpari_pt_side_of(v, 1, piece), &p->send,
                          dpari_pt_side_of(v, 0, piece), v->size);
        }
    }
}

/* Waits until the peer is ready, and checks that it runs the same exchange. */
static dpar_status dpari_pt_meet(dpari_points *x, int32_t i, int wait)
{
    dpari_pt_peer *p = &x->peer[i];
    const dpar_status st = dpari_pt_await(x, i, &p->line->ready, (uint64_t)x->count << 16, wait);
    const uint64_t word = DPARI_LOAD(&p->line->ready);
    if (st != DPAR_OK) {
        return st;
    }
    p->seen = (int64_t)(word >> 16);
    p->lends = (word & DPARI_PT_LENT) != 0 && p->seen == x->count;
    x->lent |= p->lends;
    return p->seen == x->count && (word & DPARI_PT_KIND) != x->kind
               ? dpari_pt_differs(x, i, word & DPARI_PT_KIND)
               : st;
}

/* Work n of messages: who is to wait need not test before, as messages go on by themselves. */
static dpar_status dpari_pt_message(dpari_points *x, int32_t n, int wait)
{
    const double began = dpari_pt_clock(x);
    const dpar_status st = wait == DPARI_PT_PEEK ? DPAR_MORE
                           : wait                ? dpar_wait(&x->work[n])
                                                 : dpar_test(&x->work[n]);
    dpari_pt_count(x, DPARI_PT_WAITING, began);
    return st;
}

/* All messages of an exchange that was posted again. */
static dpar_status dpari_pt_end_again(dpari_points *x)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->receives_posted + x->sends_posted && st == DPAR_OK; i++) {
        st = dpari_pt_message(x, i, 1);
    }
    return st;
}

/* Takes from peer i, whose message is work n. */
static dpar_status dpari_pt_take(dpari_points *x, int32_t i, int32_t n, int wait)
{
    dpari_pt_peer *p = &x->peer[i];
    dpar_status st = i == x->self    ? DPAR_OK
                     : p->world >= 0 ? dpari_pt_meet(x, i, wait)
                                     : dpari_pt_message(x, n, wait);
    double began;
    if (st != DPAR_OK) {
        return st;
    }
    began = dpari_pt_clock(x);
    if (i == x->self) {
        dpari_pt_take_self(x);
    } else if (p->world >= 0) {
        st = dpari_pt_take_shared(x, i);
    } else if (!p->in_place) {
        dpari_pt_unpack(x, p, p->arrives);
    }
    dpari_pt_count(x, DPARI_PT_COPYING, began);
    p->taken = st == DPAR_OK;
    return st;
}

/* From all peers: forward as they come, adjoint in the order of their ranks. */
static dpar_status dpari_pt_take_all(dpari_points *x, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass, n;
    for (pass = !wait                          ? 0
                : x->adjoint || x->shared == 0 ? 1
                                               : DPARI_PT_PEEK;
         pass <= wait; pass += 2) {
        all = DPAR_OK;
        for (i = 0, n = 0; i < x->head.peer_count; i++) {
            dpari_pt_peer *p = &x->peer[i];
            const int comes = dpari_pt_takes(x, p)->count > 0;
            const int32_t message = n;
            dpar_status st;
            n += comes && p->world < 0;
            if (p->taken || !comes) {
                continue;
            }
            st = dpari_pt_take(x, i, message, pass);
            if (st == DPAR_MORE && !x->adjoint) {
                all = DPAR_MORE;
            } else if (st != DPAR_OK) {
                return st;
            }
        }
        if (all == DPAR_OK) {
            break;
        }
    }
    return all;
}

/* Waits until peers have read this rank's vectors, and until messages have been sent. */
static dpar_status dpari_pt_leave(dpari_points *x, int wait)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->head.peer_count && st == DPAR_OK; i++) {
        if (x->peer[i].reads && i != x->self) {
            st = dpari_pt_await(x, i, &x->peer[i].line->done, (uint64_t)x->count, wait);
        }
    }
    for (i = 0; i < x->sends_posted && st == DPAR_OK; i++) {
        st = dpari_pt_message(x, x->receives_posted + i, wait);
    }
    return st;
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

/* The ranks of a node that gave up: messages of the others may never come. */
static void dpari_pt_break_both(dpari_points *x)
{
    if (x->node->status != DPAR_OK && x->head.comm->status == DPAR_OK) {
        dpar_comm_abort(x->head.comm, x->node->status, x->node->why.text);
    }
}

/* It failed: nothing of it stays under way. */
static DPARI_COLD dpar_status dpari_pt_drop(dpari_points *x, dpar_status st)
{
    dpari_pt_break_both(x);
    if (dpari_pt_broken(x) != DPAR_OK) {
        (void)dpar_wait_all(x->work, x->receives_posted + x->sends_posted);
    }
    x->receives_posted = x->sends_posted = 0;
    x->active = x->again = 0;
    return st;
}

/* Packs for peers that share memory, once they have taken what the staging memory held before, and
 * publishes it. */
static dpar_status dpari_pt_offer(dpari_points *x)
{
    dpar_status st = dpari_pt_await_done(x, x->count - 2);
    double began;
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    began = dpari_pt_clock(x);
    for (i = 0; i < x->head.peer_count; i++) {
        if (x->peer[i].world >= 0 && (i != x->self || x->adjoint)) {
            (void)dpari_pt_pack(x, i);
        }
    }
    dpari_pt_count(x, DPARI_PT_PACKING, began);
    if (x->shared > 0) {
        dpari_pt_tell(x);
    }
    return st;
}

static dpar_status dpari_pt_start(dpari_points *x)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    if (x->again) {
        return dpari_pt_post_again(x);
    }
    x->receives_posted = x->sends_posted = 0;
    for (i = 0; i < x->head.peer_count; i++) {
        x->peer[i].taken = x->peer[i].reads = 0;
    }
    if (x->messages_to > 0) {
        st = dpari_pt_receive(x);
    }
    if (st == DPAR_OK && (x->shared > 0 || x->self >= 0)) {
        st = dpari_pt_offer(x);
    }
    if (st == DPAR_OK && x->messages_to > 0) {
        st = dpari_pt_send(x);
    }
    if (st == DPAR_OK && x->self >= 0 && !x->adjoint) {
        st = dpari_pt_take(x, x->self, 0, 0);
    }
    x->again = dpari_pt_may_repeat(x);
    return st;
}

static dpar_status dpari_pt_begin(dpari_points *x, const dpar_points_field *v, int32_t n,
                                  int32_t op)
{
    dpar_status st = DPAR_OK;
    if (x->shared > 0) { /* the others may have given this rank up */
        st = dpari_group_broken(dpari_group_of(x->node));
    }
    st = st == DPAR_OK ? dpari_pt_broken(x) : st;
    if (st != DPAR_OK) {
        dpari_pt_break_both(x);
        return st;
    }
    if (x->active) {
        return dpari_comm_wrong(x->head.comm, "points exchange %ld has not ended", x->count);
    }
    st = dpari_pt_name(x, v, n);
    st = st == DPAR_OK ? dpari_rest_post(x->head.comm) : st;
    if (st != DPAR_OK) {
        return st;
    }
    x->adjoint = op != DPAR_COPY;
    x->again = x->again && !x->adjoint;
    x->op = op;
    x->kind = x->shared > 0 ? dpari_pt_kind(x, v, n) : 0;
    x->count++;
    x->active = 1;
    x->stage = DPARI_PT_TAKING;
    x->lent = 0;
    st = dpari_pt_start(x);
    return st == DPAR_OK ? st : dpari_pt_drop(x, st);
}

/* This rank has taken all: somebody may wait for that. */
static void dpari_pt_say_done(dpari_points *x)
{
    if (x->lent || x->oneway) {
        dpari_publish(x->world, &x->line->done, (uint64_t)x->count);
    } else {
        DPARI_STORE(&x->line->done, (uint64_t)x->count);
    }
}

/* As far as it goes. What its communicator was closed with has gone: nothing is looked at. */
static dpar_status dpari_pt_further(dpari_points *x, int wait)
{
    dpar_status st = DPAR_OK;
    if (x->active && x->head.comm->status != DPAR_OK && dpari_ended_is(x->head.comm)) {
        x->active = x->receives_posted = x->sends_posted = 0;
    }
    if (!x->active) {
        return dpari_pt_broken(x);
    }
    if (x->again && wait) {
        st = dpari_pt_end_again(x);
        x->stage = DPARI_PT_LEAVING;
    } else if (x->stage == DPARI_PT_TAKING) {
        st = dpari_pt_take_all(x, wait);
        if (st == DPAR_OK && x->shared > 0) { /* a peer that had timed out may have written again */
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            st = dpari_group_broken(dpari_group_of(x->node));
        }
        if (st < DPAR_OK && x->shared > 0) {
            dpari_pt_break_both(x);
        } else if (st == DPAR_OK && x->shared > 0) {
            dpari_pt_say_done(x);
        }
        x->stage = st == DPAR_OK ? DPARI_PT_LEAVING : x->stage;
    }
    st = st == DPAR_OK ? dpari_pt_leave(x, wait) : st;
    x->active = st != DPAR_OK;
    return st == DPAR_OK || st == DPAR_MORE ? st : dpari_pt_drop(x, st);
}

DPAR_API dpar_status dpar_points_begin(dpar_points *p, const dpar_points_field *v, int32_t n)
{
    return p ? dpari_pt_begin(dpari_pt_of(p), v, n, DPAR_COPY) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *p, const dpar_points_field *v, int32_t n,
                                              int32_t op)
{
    int32_t i;
    if (!p) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(p->comm, "operation %d: sum, max and min are possible", op);
    }
    for (i = 0; i < n && v; i++) {
        if (!dpari_type_can_reduce(v[i].type)) {
            return dpari_comm_wrong(p->comm, "vector %d of %s cannot be combined", i,
                                    dpar_type_name(v[i].type));
        }
    }
    return dpari_pt_begin(dpari_pt_of(p), v, n, op);
}

DPAR_API dpar_status dpar_points_test(dpar_points *p)
{
    return p ? dpari_pt_further(dpari_pt_of(p), 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_end(dpar_points *p)
{
    return p ? dpari_pt_further(dpari_pt_of(p), 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_exchange_many(dpar_points *p, const dpar_points_field *v,
                                               int32_t n)
{
    const dpar_status st = dpar_points_begin(p, v, n);
    return st == DPAR_OK ? dpar_points_end(p) : st;
}

DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_reduce_begin(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_free(dpar_points *p)
{
    dpari_points *x = dpari_pt_of(p);
    dpar_comm *comm, *of;
    dpar_status st;
    if (!p) {
        return DPAR_OK;
    }
    comm = x->head.comm;
    of = x->world ? x->node : x->head.comm;
    if (x->head.comm->status != DPAR_OK && dpari_ended_is(x->head.comm)) {
        x->active = x->receives_posted = x->sends_posted = 0;
    }
    st = dpari_pt_broken(x);
    if (x->active && st == DPAR_OK) {
        return dpari_comm_wrong(x->head.comm, "points exchange %ld has not ended", x->count);
    }
    if (st == DPAR_OK) {
        st = dpar_barrier(x->head.comm, NULL); /* peers may still look at this rank's words */
    } else if (x->active) {
        st = dpari_pt_drop(x, st);
    }
    dpar_comm_release(of, x->staging);
    dpar_comm_release(of, x->lists);
    dpar_comm_release(comm, x->owned);
    return st;
}
