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
static dpar_status dpari_pt_check_vector(const dpari_points *plan, const dpar_points_field *field,
                                         int32_t i)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t n = field->components > 0 ? field->components : 1;
    const int64_t own = plan->head.own_count, all = own + plan->head.ghost_count;
    if (dpar_type_bytes(field->type) == 0 || field->components < 0 || field->components > 1 << 20) {
        return dpari_comm_wrong(comm, "vector %d: %d components of %s", i, field->components,
                                dpar_type_name(field->type));
    }
    if (field->stride < 0 || field->component_stride < 0 || field->stride > INT64_C(1) << 31 ||
        field->component_stride > INT64_C(1) << 40 ||
        (field->component_stride <= 1 && field->stride > 0 && field->stride < n)) {
        return dpari_comm_wrong(comm,
                                "vector %d: stride %ld, component_stride %ld for %d components", i,
                                field->stride, field->component_stride, n);
    }
    if ((!field->data && (own > 0 || (all > 0 && !field->ghosts))) ||
        (!field->ghosts && !field->data && all > own)) {
        return dpari_comm_wrong(comm, "vector %d: data is NULL, %ld values lie there", i,
                                field->ghosts ? own : all);
    }
    return DPAR_OK;
}

static void dpari_pt_place_vector(const dpari_points *plan, const dpar_points_field *field,
                                  dpari_pt_vector *to)
{
    to->own = (unsigned char *)field->data;
    to->ghosts = field->ghosts ? (unsigned char *)field->ghosts
                               : (field->data ? to->own + plan->head.own_count * to->stride : NULL);
}

static void dpari_pt_set_vector(const dpari_points *plan, const dpar_points_field *field,
                                dpari_pt_vector *to)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    const int32_t n = field->components > 0 ? field->components : 1;
    const int together = field->component_stride <= 1;
    const int64_t stride = field->stride > 0 ? field->stride : together ? n : 1;
    to->type = field->type;
    to->pieces = together ? 1 : n;
    to->numbers = together ? n : 1;
    to->size = bytes * to->numbers;
    to->point = bytes * n;
    to->stride = bytes * stride;
    to->component = together ? bytes : bytes * field->component_stride;
    dpari_pt_place_vector(plan, field, to);
    to->ref = 0;
    if (plan->shared > 0 && plan->method != DPAR_POINTS_PACKED && field->data) {
        to->ref = dpari_ref(plan->world, field->data, 1);
    }
}

/* Returns the bytes at the beginning of a turn, which hold the vectors' places. Packed values
 * follow. */
static int64_t dpari_pt_places_bytes(int64_t n)
{
    const int64_t bytes = n * (int64_t)sizeof(dpari_pt_place);
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

static int64_t dpari_pt_packed_bytes(const dpari_points *plan, int64_t n, int64_t point)
{
    return dpari_pt_begins(dpari_most(plan->sends, plan->receives), plan->head.peer_count, point,
                           n) +
           DPARI_LINE;
}

/* Waits until peers have taken what they were given in exchange `last`. */
static dpar_status dpari_pt_await_done(dpari_points *plan, int64_t last)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->head.peer_count && status == DPAR_OK && last > 0; i++) {
        if (plan->peer[i].world >= 0 && i != plan->self && plan->peer[i].seen <= last) {
            status = dpari_pt_await(plan, i, &plan->peer[i].line->done, (uint64_t)last, 1);
        }
    }
    return status;
}

/* Staging memory for n vectors of so many bytes a point. */
static DPARI_COLD dpar_status dpari_pt_grow(dpari_points *plan, int64_t n, int64_t point)
{
    const int64_t head = dpari_room_up(n * (int64_t)sizeof(dpari_pt_vector)) + DPARI_LINE;
    const int64_t places = dpari_pt_places_bytes(n), packed = dpari_pt_packed_bytes(plan, n, point);
    const int64_t vectors = (head + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
    const int beside = plan->messages_to > 0; /* what arrives, and what is packed beside */
    dpar_comm *of = plan->world ? plan->node : plan->head.comm;
    void *memory = NULL;
    dpar_status status = dpari_pt_await_done(plan, plan->count);
    if (status != DPAR_OK) {
        return status;
    }
    dpar_comm_release(of, plan->staging);
    plan->staging = NULL;
    status = dpar_comm_alloc(of, vectors + 2 * (places + packed) + (beside + 1) * packed, &memory);
    if (status != DPAR_OK) {
        dpar_why why = of->why;
        return dpari_comm_wrong_all(plan->head.comm, status, &why);
    }
    plan->staging = (unsigned char *)memory;
    plan->vector = (dpari_pt_vector *)memory;
    plan->staging_vectors = n;
    plan->staging_turn = places + packed;
    plan->turns = plan->staging + vectors;
    plan->aside = plan->turns + 2 * plan->staging_turn;
    plan->arrivals = plan->aside + packed;
    if (plan->shared > 0) {
        plan->line->turns = dpari_ref(plan->world, plan->turns, 1);
        plan->line->turn_bytes = plan->staging_turn;
    }
    return DPAR_OK;
}

/* What ranks must name alike. */
static uint64_t dpari_pt_kind(const dpari_points *plan, const dpar_points_field *fields, int32_t n)
{
    uint64_t h = dpari_hash(0, n);
    int32_t i;
    for (i = 0; i < n; i++) {
        h = dpari_hash(h, fields[i].type +
                              64 * (int64_t)(fields[i].components > 0 ? fields[i].components : 1));
    }
    return (h & (DPARI_PT_KIND - DPARI_PT_OP)) | (uint64_t)(!plan->adjoint         ? 0
                                                            : plan->op == DPAR_SUM ? 1
                                                            : plan->op == DPAR_MAX ? 2
                                                                                   : 3);
}

/* True if there is one vector, with the type, components and strides of the one before, so that it
 * need not be checked again. Its address may differ. (Plans whose peers read in place are excluded,
 * because memory at the same address may be other memory by now.) */
static int dpari_pt_is_named(const dpari_points *plan, const dpar_points_field *fields, int32_t n)
{
    const dpar_points_field *a = &plan->named;
    return n == 1 && plan->vectors == 1 && plan->shared == 0 && fields && fields->data &&
           fields->type == a->type && !fields->ghosts == !a->ghosts &&
           fields->components == a->components && fields->stride == a->stride &&
           fields->component_stride == a->component_stride;
}

/* Checks and stores the vectors that the caller passes. */
static dpar_status dpari_pt_name(dpari_points *plan, const dpar_points_field *fields, int32_t n)
{
    dpar_comm *comm = plan->head.comm;
    dpar_status status = DPAR_OK;
    int64_t point = 0;
    int32_t i;
    if (dpari_pt_is_named(plan, fields, n)) {
        dpari_pt_place_vector(plan, fields, plan->vector);
        return DPAR_OK;
    }
    plan->named.type = DPAR_TYPE_NONE;
    plan->again = 0;
    if (n < 1 || n > DPARI_PT_MOST || !fields) {
        return dpari_comm_wrong(comm, "points exchange of %d vectors: 1 to %d are possible",
                                fields ? n : 0, (int32_t)DPARI_PT_MOST);
    }
    for (i = 0; i < n && status == DPAR_OK; i++) {
        status = dpari_pt_check_vector(plan, &fields[i], i);
        point += status == DPAR_OK ? dpar_type_bytes(fields[i].type) *
                                         (fields[i].components > 0 ? fields[i].components : 1)
                                   : 0;
    }
    if (status == DPAR_OK &&
        (n > plan->staging_vectors ||
         dpari_pt_places_bytes(n) + dpari_pt_packed_bytes(plan, n, point) > plan->staging_turn)) {
        status = dpari_pt_grow(plan, n, point);
    }
    for (i = 0; i < n && status == DPAR_OK; i++) {
        dpari_pt_set_vector(plan, &fields[i], &plan->vector[i]);
    }
    plan->vectors = n;
    plan->point = point;
    if (status == DPAR_OK && n == 1) {
        plan->named = fields[0];
    }
    return status;
}

/* ---- giving -----------------------------------------------------------------------------------
 */

/* Messages have left when an exchange ends: they alone need no second turn. */
static unsigned char *dpari_pt_turn(const dpari_points *plan)
{
    return plan->turns + (plan->shared > 0 ? plan->count & 1 : 0) * plan->staging_turn;
}

static unsigned char *dpari_pt_packed(const dpari_points *plan)
{
    return dpari_pt_turn(plan) + dpari_pt_places_bytes(plan->vectors);
}

/* Returns where the values that this rank packs for a peer begin, counted over all peers, */
static int64_t dpari_pt_out_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_peer *peer = &plan->peer[i];
    return dpari_pt_begins(plan->adjoint ? peer->receives_before : peer->sends_before, i,
                           plan->point, plan->vectors);
}

/* and where a peer has packed those for this rank, in the peer's memory. */
static int64_t dpari_pt_in_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_record *record = &plan->peer[i].theirs;
    return dpari_pt_begins(plan->adjoint ? record->receives_before : record->sends_before,
                           record->number, plan->point, plan->vectors);
}

/* The list that a rank gives by, and takes by. */
static const dpari_pt_list *dpari_pt_gives(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return plan->adjoint ? &peer->receive : &peer->send;
}

static const dpari_pt_list *dpari_pt_takes(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return plan->adjoint ? &peer->send : &peer->receive;
}

static dpari_pt_side dpari_pt_side_of(const dpari_pt_vector *vector, int ghosts, int32_t piece)
{
    dpari_pt_side s;
    s.at = (ghosts ? vector->ghosts : vector->own) + piece * vector->component;
    s.stride = vector->stride;
    return s;
}

static dpari_pt_side dpari_pt_dense_side(const dpari_pt_vector *vector, unsigned char *at,
                                         int32_t piece)
{
    dpari_pt_side s;
    s.at = at + piece * vector->size;
    s.stride = vector->point;
    return s;
}

/* All of a message is one piece of the vector: it need not be packed. */
static int dpari_pt_is_whole(const dpari_points *plan, const dpari_pt_list *list)
{
    return plan->vectors == 1 && list->kind == DPARI_PT_ONE && plan->vector[0].pieces == 1 &&
           plan->vector[0].stride == plan->vector[0].size;
}

/* Returns the packed bytes of `values` values of all vectors. */
static int64_t dpari_pt_bytes(const dpari_points *plan, int64_t values)
{
    int64_t bytes = 0;
    int32_t i;
    if (plan->vectors == 1) {
        return values * plan->point;
    }
    for (i = 0; i < plan->vectors && values > 0; i++) {
        bytes += dpari_pt_block(values, plan->vector[i].point);
    }
    return bytes;
}

/* True if a peer reads this vector in place. */
static int dpari_pt_lends(const dpari_points *plan, const dpari_pt_peer *peer,
                          const dpari_pt_vector *vector)
{
    return !plan->adjoint && peer->world >= 0 &&
           dpari_pt_is_direct(plan, vector->ref, vector->size, peer->send.count, peer->send.runs);
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
static void dpari_pt_pack_shared(const dpari_points *plan, const dpari_pt_vector *vector,
                                 const dpari_pt_list *list, dpari_pt_side mine, unsigned char *to)
{
    const int64_t all = list->count * vector->size,
                  bite = dpari_most(DPARI_PT_BITE / vector->size, 1);
    const int beside = list->kind == DPARI_PT_EACH || vector->stride != vector->size;
    dpari_pt_list part = *list;
    int64_t k;
    dpari_pt_own_lines(to, dpari_least(all, bite * vector->size));
    for (k = 0; k < list->count; k += part.count) {
        const int64_t at = k * vector->size, next = at + bite * vector->size;
        dpari_pt_list dense;
        part.count = dpari_least(bite, list->count - k);
        part.at = list->kind == DPARI_PT_EACH ? list->at + k : NULL;
        part.first = (int32_t)(list->first + k * (list->step != 0 ? list->step : 1));
        dense = dpari_pt_dense(part.count);
        dpari_pt_own_lines(to + next, dpari_least(all - next, bite * vector->size));
        dpari_pt_move(&dense, dpari_pt_dense_side(vector, beside ? plan->aside : to + at, 0), &part,
                      mine, vector->size);
        if (beside) {
            dpari_elements_bits(to + at, plan->aside, (size_t)(part.count * vector->size));
        }
    }
}

/* A vector into what is packed for a peer, which may share the memory. */
static void dpari_pt_pack_vector(dpari_points *plan, const dpari_pt_vector *vector,
                                 const dpari_pt_list *list, unsigned char *to, int shared)
{
    const dpari_pt_list dense = dpari_pt_dense(list->count);
    const int bites = shared && list->kind != DPARI_PT_RUNS && vector->pieces == 1;
    const int aside = shared && !bites;
    int32_t piece;
    for (piece = 0; piece < vector->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(vector, plan->adjoint, piece);
        if (bites) {
            dpari_pt_pack_shared(plan, vector, list, mine, to);
        } else {
            dpari_pt_move(&dense, dpari_pt_dense_side(vector, aside ? plan->aside : to, piece),
                          list, mine, vector->size);
        }
        if (plan->adjoint) {
            dpari_pt_clear(list, mine, vector->size);
        }
    }
    if (aside) {
        dpari_elements_bits(to, plan->aside, (size_t)(list->count * vector->point));
    }
}

/* Packs what peer i gets of the vectors, but for those that it reads where they lie. Returns where.
 */
static unsigned char *dpari_pt_pack(dpari_points *plan, int32_t i)
{
    dpari_pt_peer *peer = &plan->peer[i];
    const dpari_pt_list *list = dpari_pt_gives(plan, peer);
    unsigned char *const out = dpari_pt_packed(plan) + dpari_pt_out_at(plan, i), *to = out;
    int32_t k;
    peer->reads = 0;
    for (k = 0; k < plan->vectors && list->count > 0; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        if (dpari_pt_lends(plan, peer, vector)) {
            peer->reads = 1;
        } else {
            dpari_pt_pack_vector(plan, vector, list, to, peer->world >= 0 && i != plan->self);
        }
        to += plan->vectors == 1 ? 0 : dpari_pt_block(list->count, vector->point);
    }
    return out;
}

/* Publishes that all is packed, and the references of vectors that are read in place. */
static void dpari_pt_tell(dpari_points *plan)
{
    dpari_pt_place *place = (dpari_pt_place *)(void *)dpari_pt_turn(plan);
    uint64_t word = (uint64_t)plan->count << 16 | plan->kind;
    int32_t i, k;
    for (i = 0; i < plan->head.peer_count; i++) {
        word |= plan->peer[i].reads ? (uint64_t)DPARI_PT_LENT : 0;
    }
    for (k = 0; k < plan->vectors && (word & DPARI_PT_LENT); k++) {
        place[k].ref = plan->vector[k].ref;
        place[k].stride = plan->vector[k].stride;
        place[k].component = plan->vector[k].component;
        place[k].size = plan->vector[k].size;
    }
    dpari_publish(plan->world, &plan->line->ready, word);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static void dpari_pt_call(dpari_points *plan, int32_t n, const dpari_pt_peer *peer, int32_t kind,
                          unsigned char *at, int64_t bytes)
{
    dpar_call *call = &plan->call[n]; /* zero but for what is said here */
    call->kind = kind;
    call->type = DPAR_U8;
    call->root = peer->rank;
    call->tag = plan->tag;
    call->count = bytes;
    call->in = kind == DPAR_CALL_SEND ? at : NULL;
    call->out = kind == DPAR_CALL_SEND ? NULL : at;
}

/* Receives come first, so that what arrives has its place: into the ghosts where they are one
 * piece. */
static dpar_status dpari_pt_receive(dpari_points *plan)
{
    int32_t i, n = 0;
    for (i = 0; i < plan->head.peer_count; i++) {
        dpari_pt_peer *peer = &plan->peer[i];
        const dpari_pt_list *list = dpari_pt_takes(plan, peer);
        if (peer->world >= 0 || list->count == 0) {
            continue;
        }
        peer->in_place = !plan->adjoint && dpari_pt_is_whole(plan, list);
        peer->arrives =
            peer->in_place ? plan->vector[0].ghosts + list->first * plan->vector[0].stride
                           : plan->arrivals + dpari_pt_begins(plan->adjoint ? peer->sends_before
                                                                            : peer->receives_before,
                                                              i, plan->point, plan->vectors);
        dpari_pt_call(plan, n++, peer, DPAR_CALL_RECV, peer->arrives,
                      dpari_pt_bytes(plan, list->count));
    }
    plan->receives_posted = n;
    return n > 0 ? dpari_batch_checked(plan->head.comm, plan->call, n, plan->work) : DPAR_OK;
}

/* Packs for those that get messages, and sends. */
static dpar_status dpari_pt_send(dpari_points *plan)
{
    int32_t i, n = plan->receives_posted;
    for (i = 0; i < plan->head.peer_count; i++) {
        dpari_pt_peer *peer = &plan->peer[i];
        const dpari_pt_list *list = dpari_pt_gives(plan, peer);
        unsigned char *from;
        if (peer->world >= 0 || list->count == 0) {
            continue;
        }
        if (!plan->adjoint && dpari_pt_is_whole(plan, list)) {
            from = plan->vector[0].own + list->first * plan->vector[0].stride;
        } else {
            from = dpari_pt_pack(plan, i);
        }
        dpari_pt_call(plan, n++, peer, DPAR_CALL_SEND, from, dpari_pt_bytes(plan, list->count));
    }
    plan->sends_posted = n - plan->receives_posted;
    return plan->sends_posted > 0
               ? dpari_batch_checked(plan->head.comm, plan->call + plan->receives_posted,
                                     plan->sends_posted, plan->work + plan->receives_posted)
               : DPAR_OK;
}

/* ---- messages of the exchange before, posted again --------------------------------------------
 *
 * A solver runs one exchange over and over: forward, of one vector, by messages alone, into ghosts
 * that lie in one piece each. Its calls stay; where the vector lies is put into them. */

static int dpari_pt_may_repeat(const dpari_points *plan)
{
    int32_t i;
    for (i = 0; i < plan->head.peer_count; i++) {
        if (plan->peer[i].world >= 0 ||
            (plan->peer[i].receive.count > 0 && !plan->peer[i].in_place)) {
            return 0;
        }
    }
    return plan->vectors == 1 && plan->vector[0].pieces == 1 && !plan->adjoint;
}

static dpar_status dpari_pt_post_again(dpari_points *plan)
{
    const dpari_pt_vector *vector = plan->vector;
    dpar_call *call = plan->call;
    dpar_status status;
    int32_t i;
    for (i = 0; i < plan->head.peer_count; i++) {
        const dpari_pt_list *list = &plan->peer[i].receive;
        plan->peer[i].taken = 0;
        if (list->count > 0) {
            call++->out = vector->ghosts + list->first * vector->stride;
        }
    }
    status = dpari_batch_checked(plan->head.comm, plan->call, plan->receives_posted, plan->work);
    for (i = 0; i < plan->head.peer_count && status == DPAR_OK; i++) {
        const dpari_pt_list *list = &plan->peer[i].send;
        if (list->count > 0 && dpari_pt_is_whole(plan, list)) {
            call++->in = vector->own + list->first * vector->stride;
        } else if (list->count > 0) {
            const dpari_pt_list dense = dpari_pt_dense(list->count);
            unsigned char *to = (unsigned char *)(uintptr_t)call++->in;
            dpari_pt_move(&dense, dpari_pt_dense_side(vector, to, 0), list,
                          dpari_pt_side_of(vector, 0, 0), vector->size);
        }
    }
    return status != DPAR_OK
               ? status
               : dpari_batch_checked(plan->head.comm, plan->call + plan->receives_posted,
                                     plan->sends_posted, plan->work + plan->receives_posted);
}

/* ---- taking -----------------------------------------------------------------------------------
 */

/* What was packed, into ghosts, or combined with own values. */
static void dpari_pt_unpack(const dpari_points *plan, const dpari_pt_peer *peer,
                            unsigned char *from)
{
    const dpari_pt_list *list = dpari_pt_takes(plan, peer);
    const dpari_pt_list dense = dpari_pt_dense(list->count);
    int32_t k, piece;
    for (k = 0; k < plan->vectors; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        for (piece = 0; piece < vector->pieces; piece++) {
            const dpari_pt_side mine = dpari_pt_side_of(vector, !plan->adjoint, piece);
            const dpari_pt_side theirs = dpari_pt_dense_side(vector, from, piece);
            if (plan->adjoint) {
                dpari_pt_combine(list, mine, theirs, vector->numbers, vector->type, plan->op);
            } else {
                dpari_pt_move(list, mine, &dense, theirs, vector->size);
            }
        }
        from += plan->vectors == 1 ? 0 : dpari_pt_block(list->count, vector->point);
    }
}

/* A vector of the giver, read where it lies by its list: in the shorter passes of both. */
static dpar_status dpari_pt_read(dpari_points *plan, const dpari_pt_peer *peer,
                                 const dpari_pt_vector *vector, const dpari_pt_place *place)
{
    const int64_t size = dpari_least(vector->size, place->size);
    unsigned char *at = (unsigned char *)dpari_at(plan->world, place->ref);
    dpari_pt_side theirs;
    int32_t piece;
    if (at == NULL) {
        return dpari_pt_unreachable(plan, place->ref);
    }
    for (piece = 0; piece < vector->point / size; piece++) {
        theirs.at = at + piece * place->component;
        theirs.stride = place->stride;
        dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &peer->source, theirs,
                      size);
    }
    return DPAR_OK;
}

/* The turn of a peer that is ready; NULL: there are no addresses for it. */
static unsigned char *dpari_pt_their_turn(const dpari_points *plan, dpari_pt_peer *peer)
{
    if (peer->turns != peer->line->turns) {
        peer->mapped = (unsigned char *)dpari_at(plan->world, peer->line->turns);
        if (peer->mapped == NULL) {
            return NULL;
        }
        peer->turns = peer->line->turns;
    }
    return peer->mapped + (plan->count & 1) * peer->line->turn_bytes;
}

/* From a rank that shares memory and is ready. */
static dpar_status dpari_pt_take_shared(dpari_points *plan, int32_t i)
{
    dpari_pt_peer *peer = &plan->peer[i];
    unsigned char *turn = dpari_pt_their_turn(plan, peer);
    const dpari_pt_place *place = (const dpari_pt_place *)(const void *)turn;
    unsigned char *from;
    const dpari_pt_list dense = dpari_pt_dense(peer->receive.count);
    int32_t k, piece;
    dpar_status status = DPAR_OK;
    if (turn == NULL) {
        return dpari_pt_unreachable(plan, peer->line->turns);
    }
    from = turn + dpari_pt_places_bytes(plan->vectors) + dpari_pt_in_at(plan, i);
    if (plan->adjoint) {
        dpari_pt_unpack(plan, peer, from);
        return DPAR_OK;
    }
    for (k = 0; k < plan->vectors && peer->receive.count > 0 && status == DPAR_OK; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        if (peer->lends && dpari_pt_is_direct(plan, place[k].ref, place[k].size, peer->source.count,
                                              peer->source.runs)) {
            status = dpari_pt_read(plan, peer, vector, &place[k]);
        } else {
            for (piece = 0; piece < vector->pieces; piece++) {
                dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &dense,
                              dpari_pt_dense_side(vector, from, piece), vector->size);
            }
        }
        from += plan->vectors == 1 ? 0 : dpari_pt_block(peer->receive.count, vector->point);
    }
    return status;
}

/* This rank's own values that it reads as ghosts: at once, or of an adjoint out of what it packed.
 */
static void dpari_pt_take_self(dpari_points *plan)
{
    const dpari_pt_peer *peer = &plan->peer[plan->self];
    int32_t k, piece;
    if (plan->adjoint) {
        dpari_pt_unpack(plan, peer, dpari_pt_packed(plan) + dpari_pt_out_at(plan, plan->self));
        return;
    }
    for (k = 0; k < plan->vectors; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        for (piece = 0; piece < vector->pieces; piece++) {
            dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &peer->send,
                          dpari_pt_side_of(vector, 0, piece), vector->size);
        }
    }
}

/* Waits until the peer is ready, and checks that it runs the same exchange. */
static dpar_status dpari_pt_meet(dpari_points *plan, int32_t i, int wait)
{
    dpari_pt_peer *peer = &plan->peer[i];
    const dpar_status status =
        dpari_pt_await(plan, i, &peer->line->ready, (uint64_t)plan->count << 16, wait);
    const uint64_t word = DPARI_LOAD(&peer->line->ready);
    if (status != DPAR_OK) {
        return status;
    }
    peer->seen = (int64_t)(word >> 16);
    peer->lends = (word & DPARI_PT_LENT) != 0 && peer->seen == plan->count;
    plan->lent |= peer->lends;
    return peer->seen == plan->count && (word & DPARI_PT_KIND) != plan->kind
               ? dpari_pt_differs(plan, i, word & DPARI_PT_KIND)
               : status;
}

/* Work n of messages: who is to wait need not test before, as messages go on by themselves. */
static dpar_status dpari_pt_message(dpari_points *plan, int32_t n, int wait)
{
    const double began = dpari_pt_clock(plan);
    const dpar_status status = wait == DPARI_PT_PEEK ? DPAR_MORE
                               : wait                ? dpar_wait(&plan->work[n])
                                                     : dpar_test(&plan->work[n]);
    dpari_pt_count(plan, DPARI_PT_WAITING, began);
    return status;
}

/* All messages of an exchange that was posted again. */
static dpar_status dpari_pt_end_again(dpari_points *plan)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->receives_posted + plan->sends_posted && status == DPAR_OK; i++) {
        status = dpari_pt_message(plan, i, 1);
    }
    return status;
}

/* Takes from peer i, whose message is work n. */
static dpar_status dpari_pt_take(dpari_points *plan, int32_t i, int32_t n, int wait)
{
    dpari_pt_peer *peer = &plan->peer[i];
    dpar_status status = i == plan->self    ? DPAR_OK
                         : peer->world >= 0 ? dpari_pt_meet(plan, i, wait)
                                            : dpari_pt_message(plan, n, wait);
    double began;
    if (status != DPAR_OK) {
        return status;
    }
    began = dpari_pt_clock(plan);
    if (i == plan->self) {
        dpari_pt_take_self(plan);
    } else if (peer->world >= 0) {
        status = dpari_pt_take_shared(plan, i);
    } else if (!peer->in_place) {
        dpari_pt_unpack(plan, peer, peer->arrives);
    }
    dpari_pt_count(plan, DPARI_PT_COPYING, began);
    peer->taken = status == DPAR_OK;
    return status;
}

/* From all peers: forward as they come, adjoint in the order of their ranks. */
static dpar_status dpari_pt_take_all(dpari_points *plan, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass, n;
    for (pass = !wait                                ? 0
                : plan->adjoint || plan->shared == 0 ? 1
                                                     : DPARI_PT_PEEK;
         pass <= wait; pass += 2) {
        all = DPAR_OK;
        for (i = 0, n = 0; i < plan->head.peer_count; i++) {
            dpari_pt_peer *peer = &plan->peer[i];
            const int comes = dpari_pt_takes(plan, peer)->count > 0;
            const int32_t message = n;
            dpar_status status;
            n += comes && peer->world < 0;
            if (peer->taken || !comes) {
                continue;
            }
            status = dpari_pt_take(plan, i, message, pass);
            if (status == DPAR_MORE && !plan->adjoint) {
                all = DPAR_MORE;
            } else if (status != DPAR_OK) {
                return status;
            }
        }
        if (all == DPAR_OK) {
            break;
        }
    }
    return all;
}

/* Waits until peers have read this rank's vectors, and until messages have been sent. */
static dpar_status dpari_pt_leave(dpari_points *plan, int wait)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->head.peer_count && status == DPAR_OK; i++) {
        if (plan->peer[i].reads && i != plan->self) {
            status =
                dpari_pt_await(plan, i, &plan->peer[i].line->done, (uint64_t)plan->count, wait);
        }
    }
    for (i = 0; i < plan->sends_posted && status == DPAR_OK; i++) {
        status = dpari_pt_message(plan, plan->receives_posted + i, wait);
    }
    return status;
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

/* The ranks of a node that gave up: messages of the others may never come. */
static void dpari_pt_break_both(dpari_points *plan)
{
    if (plan->node->status != DPAR_OK && plan->head.comm->status == DPAR_OK) {
        dpar_comm_abort(plan->head.comm, plan->node->status, plan->node->why.text);
    }
}

/* It failed: nothing of it stays under way. */
static DPARI_COLD dpar_status dpari_pt_drop(dpari_points *plan, dpar_status status)
{
    dpari_pt_break_both(plan);
    if (dpari_pt_broken(plan) != DPAR_OK) {
        (void)dpar_wait_all(plan->work, plan->receives_posted + plan->sends_posted);
    }
    plan->receives_posted = plan->sends_posted = 0;
    plan->active = plan->again = 0;
    return status;
}

/* Packs for peers that share memory, once they have taken what the staging memory held before, and
 * publishes it. */
static dpar_status dpari_pt_offer(dpari_points *plan)
{
    dpar_status status = dpari_pt_await_done(plan, plan->count - 2);
    double began;
    int32_t i;
    if (status != DPAR_OK) {
        return status;
    }
    began = dpari_pt_clock(plan);
    for (i = 0; i < plan->head.peer_count; i++) {
        if (plan->peer[i].world >= 0 && (i != plan->self || plan->adjoint)) {
            (void)dpari_pt_pack(plan, i);
        }
    }
    dpari_pt_count(plan, DPARI_PT_PACKING, began);
    if (plan->shared > 0) {
        dpari_pt_tell(plan);
    }
    return status;
}

static dpar_status dpari_pt_start(dpari_points *plan)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    if (plan->again) {
        return dpari_pt_post_again(plan);
    }
    plan->receives_posted = plan->sends_posted = 0;
    for (i = 0; i < plan->head.peer_count; i++) {
        plan->peer[i].taken = plan->peer[i].reads = 0;
    }
    if (plan->messages_to > 0) {
        status = dpari_pt_receive(plan);
    }
    if (status == DPAR_OK && (plan->shared > 0 || plan->self >= 0)) {
        status = dpari_pt_offer(plan);
    }
    if (status == DPAR_OK && plan->messages_to > 0) {
        status = dpari_pt_send(plan);
    }
    if (status == DPAR_OK && plan->self >= 0 && !plan->adjoint) {
        status = dpari_pt_take(plan, plan->self, 0, 0);
    }
    plan->again = dpari_pt_may_repeat(plan);
    return status;
}

static dpar_status dpari_pt_begin(dpari_points *plan, const dpar_points_field *fields, int32_t n,
                                  int32_t op)
{
    dpar_status status = DPAR_OK;
    if (plan->shared > 0) { /* the others may have given this rank up */
        status = dpari_group_broken(dpari_group_of(plan->node));
    }
    status = status == DPAR_OK ? dpari_pt_broken(plan) : status;
    if (status != DPAR_OK) {
        dpari_pt_break_both(plan);
        return status;
    }
    if (plan->active) {
        return dpari_comm_wrong(plan->head.comm, "points exchange %ld has not ended", plan->count);
    }
    status = dpari_pt_name(plan, fields, n);
    status = status == DPAR_OK ? dpari_rest_post(plan->head.comm) : status;
    if (status != DPAR_OK) {
        return status;
    }
    plan->adjoint = op != DPAR_COPY;
    plan->again = plan->again && !plan->adjoint;
    plan->op = op;
    plan->kind = plan->shared > 0 ? dpari_pt_kind(plan, fields, n) : 0;
    plan->count++;
    plan->active = 1;
    plan->stage = DPARI_PT_TAKING;
    plan->lent = 0;
    status = dpari_pt_start(plan);
    return status == DPAR_OK ? status : dpari_pt_drop(plan, status);
}

/* This rank has taken all: somebody may wait for that. */
static void dpari_pt_say_done(dpari_points *plan)
{
    if (plan->lent || plan->oneway) {
        dpari_publish(plan->world, &plan->line->done, (uint64_t)plan->count);
    } else {
        DPARI_STORE(&plan->line->done, (uint64_t)plan->count);
    }
}

/* As far as it goes. What its communicator was closed with has gone: nothing is looked at. */
static dpar_status dpari_pt_further(dpari_points *plan, int wait)
{
    dpar_status status = DPAR_OK;
    if (plan->active && plan->head.comm->status != DPAR_OK && dpari_ended_is(plan->head.comm)) {
        plan->active = plan->receives_posted = plan->sends_posted = 0;
    }
    if (!plan->active) {
        return dpari_pt_broken(plan);
    }
    if (plan->again && wait) {
        status = dpari_pt_end_again(plan);
        plan->stage = DPARI_PT_LEAVING;
    } else if (plan->stage == DPARI_PT_TAKING) {
        status = dpari_pt_take_all(plan, wait);
        if (status == DPAR_OK &&
            plan->shared > 0) { /* a peer that had timed out may have written again */
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            status = dpari_group_broken(dpari_group_of(plan->node));
        }
        if (status < DPAR_OK && plan->shared > 0) {
            dpari_pt_break_both(plan);
        } else if (status == DPAR_OK && plan->shared > 0) {
            dpari_pt_say_done(plan);
        }
        plan->stage = status == DPAR_OK ? DPARI_PT_LEAVING : plan->stage;
    }
    status = status == DPAR_OK ? dpari_pt_leave(plan, wait) : status;
    plan->active = status != DPAR_OK;
    return status == DPAR_OK || status == DPAR_MORE ? status : dpari_pt_drop(plan, status);
}

DPAR_API dpar_status dpar_points_begin(dpar_points *points, const dpar_points_field *fields,
                                       int32_t n)
{
    return points ? dpari_pt_begin(dpari_pt_of(points), fields, n, DPAR_COPY) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *points, const dpar_points_field *fields,
                                              int32_t n, int32_t op)
{
    int32_t i;
    if (!points) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(points->comm, "operation %d: sum, max and min are possible", op);
    }
    for (i = 0; i < n && fields; i++) {
        if (!dpari_type_can_reduce(fields[i].type)) {
            return dpari_comm_wrong(points->comm, "vector %d of %s cannot be combined", i,
                                    dpar_type_name(fields[i].type));
        }
    }
    return dpari_pt_begin(dpari_pt_of(points), fields, n, op);
}

DPAR_API dpar_status dpar_points_test(dpar_points *points)
{
    return points ? dpari_pt_further(dpari_pt_of(points), 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_end(dpar_points *points)
{
    return points ? dpari_pt_further(dpari_pt_of(points), 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_exchange_many(dpar_points *points, const dpar_points_field *fields,
                                               int32_t n)
{
    const dpar_status status = dpar_points_begin(points, fields, n);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_reduce_begin(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_free(dpar_points *points)
{
    dpari_points *plan = dpari_pt_of(points);
    dpar_comm *comm, *of;
    dpar_status status;
    if (!points) {
        return DPAR_OK;
    }
    comm = plan->head.comm;
    of = plan->world ? plan->node : plan->head.comm;
    if (plan->head.comm->status != DPAR_OK && dpari_ended_is(plan->head.comm)) {
        plan->active = plan->receives_posted = plan->sends_posted = 0;
    }
    status = dpari_pt_broken(plan);
    if (plan->active && status == DPAR_OK) {
        return dpari_comm_wrong(plan->head.comm, "points exchange %ld has not ended", plan->count);
    }
    if (status == DPAR_OK) {
        status =
            dpar_barrier(plan->head.comm, NULL); /* peers may still look at this rank's words */
    } else if (plan->active) {
        status = dpari_pt_drop(plan, status);
    }
    dpar_comm_release(of, plan->staging);
    dpar_comm_release(of, plan->lists);
    dpar_comm_release(comm, plan->owned);
    return status;
}
