/* SPDX-License-Identifier: MIT-0 */
/* Packs and takes the values of exchanges of points, and begins, tests and ends them for the
 * caller.
 *
 * ../exchange runs an exchange and calls functions of this file: to pack values and to take those
 * of a peer. A forward exchange stores them in ghosts, an adjoint combines them with own values.
 * This file also checks the vectors that are exchanged. */
#include "points_run.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../host/elements.h"
#include "points.h"
#include "points_list.h"
#include "points_plan.h"
#include "points_shared.h"

/* ---- vectors --------------------------------------------------------------------------------- */

/* Checks vector i of an exchange. Returns DPAR_E_ARG with a message in comm->why. */
static dpar_status dpari_pt_check_vector(const dpari_points *plan, const dpar_points_field *field,
                                         int32_t i)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t n = dpari_pt_components(field);
    const int64_t own = plan->head.own_count, all = own + plan->head.ghost_count;
    if (dpar_type_bytes(field->type) == 0 ||
        (plan->shared.memory && !dpari_type_can_reduce(field->type)) || field->components < 0 ||
        field->components > 1 << 20) {
        return dpari_comm_wrong(
            comm,
            "vector %d: %d components of type %s (allowed: 0 to 2^20, of a type with bytes, "
            "and with shared ids one that can be combined)",
            i, field->components, dpar_type_name(field->type));
    }
    if (field->stride < 0 || field->component_stride < 0 || field->stride > INT64_C(1) << 31 ||
        field->component_stride > INT64_C(1) << 40 ||
        (field->component_stride <= 1 && field->stride > 0 && field->stride < n && all > 1)) {
        return dpari_comm_wrong(
            comm,
            "vector %d: stride %ld (0 to 2^31) or component_stride %ld (0 to 2^40) "
            "does not fit %d components",
            i, field->stride, field->component_stride, n);
    }
    if ((!field->data && (own > 0 || (all > 0 && !field->ghosts))) ||
        (!field->ghosts && !field->data && all > own)) {
        return dpari_comm_wrong(comm, "vector %d: data is NULL but must hold %ld values", i,
                                field->ghosts ? own : all);
    }
    return DPAR_OK;
}

/* Sets the addresses of a vector. Its strides are set already. */
static void dpari_pt_place_vector(const dpari_points *plan, const dpar_points_field *field,
                                  dpari_pt_vector *to)
{
    to->own = (unsigned char *)field->data;
    to->ghosts = (unsigned char *)field->ghosts;
    if (plan->shared.memory) { /* peers get own values and send their own ones */
        to->ghosts = to->own;
    } else if (field->ghosts == NULL && field->data != NULL) {
        to->ghosts = to->own + plan->first_ghost * to->stride;
    }
}

/* Converts a checked vector of the caller to a dpari_pt_vector, whose strides are in bytes. */
static void dpari_pt_set_vector(const dpari_points *plan, const dpar_points_field *field,
                                dpari_pt_vector *to)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    const int32_t n = dpari_pt_components(field);
    const int together = field->component_stride <= 1;
    to->type = field->type;
    to->pieces = together ? 1 : n;
    to->numbers = together ? n : 1;
    to->size = bytes * to->numbers;
    to->point = bytes * n;
    to->stride = bytes * dpari_pt_stride(field);
    to->component = together ? bytes : bytes * field->component_stride;
    dpari_pt_place_vector(plan, field, to);
    to->ref = 0;
    if (plan->x.shared > 0 && plan->method != DPAR_POINTS_PACKED && field->data) {
        to->ref = dpari_ref(plan->x.world, field->data, 1);
    }
}

/* Returns the number of bytes at the beginning of a turn that hold the vectors' places. Packed
 * values follow. */
static int64_t dpari_pt_places_bytes(int64_t n)
{
    return dpari_exchange_lines(n * (int64_t)sizeof(dpari_pt_place));
}

/* Returns the number of bytes of the packed values of all peers, which suffices for both forward
 * and adjoint exchanges. */
static int64_t dpari_pt_packed_bytes(const dpari_points *plan, int64_t n, int64_t point)
{
    return dpari_pt_begins(dpari_most(plan->sends, plan->receives), plan->x.peers, point, n) +
           DPARI_LINE;
}

/* Allocates larger staging memory for n vectors, which together have `point` bytes per point. A
 * failure breaks the communicator, because the other ranks have begun the exchange. */
static DPARI_COLD dpar_status dpari_pt_grow(dpari_points *plan, int64_t n, int64_t point)
{
    const int64_t places = dpari_pt_places_bytes(n), packed = dpari_pt_packed_bytes(plan, n, point);
    const int64_t vectors = dpari_exchange_lines(n * (int64_t)sizeof(dpari_pt_vector)) + DPARI_LINE;
    dpar_comm *of = plan->x.world ? plan->x.node : plan->head.comm;
    void *memory = NULL;
    dpar_status status = dpari_exchange_await_done(&plan->x, plan->x.count);
    if (status != DPAR_OK) {
        return status;
    }
    dpar_comm_release(of, plan->staging);
    plan->staging = NULL;
    status = dpar_comm_alloc(
        of, vectors + 2 * (places + packed) + (plan->messages_to > 0 ? 2 : 1) * packed, &memory);
    if (status != DPAR_OK) {
        dpar_why why = of->why;
        return dpari_comm_wrong_all(plan->head.comm, status, "%s", why.text);
    }
    plan->staging = (unsigned char *)memory;
    plan->vector = (dpari_pt_vector *)memory;
    plan->staging_vectors = n;
    plan->staging_turn = places + packed;
    plan->turns = plan->staging + vectors;
    plan->aside = plan->turns + 2 * plan->staging_turn;
    plan->arrivals = plan->aside + packed;
    if (plan->x.shared > 0) {
        plan->x.line->place[DPARI_PT_TURNS] = dpari_ref(plan->x.world, plan->turns, 1);
        plan->x.line->place[DPARI_PT_TURN_BYTES] = (uint64_t)plan->staging_turn;
    }
    return DPAR_OK;
}

/* Returns a hash of the operation, and of the number, types and components of the vectors, which
 * peers compare. */
static uint64_t dpari_pt_hash_vectors(const dpar_points_field *fields, int32_t n, int32_t op)
{
    uint64_t hash = dpari_hash((uint64_t)op, n);
    int32_t i;
    for (i = 0; i < n; i++) {
        hash = dpari_hash(hash, fields[i].type + 64 * (int64_t)dpari_pt_components(&fields[i]));
    }
    return hash;
}

/* True if there is one vector, with the type, components and strides of the last exchange's vector,
 * so that it need not be checked again. Its address may differ. Plans whose peers read in place are
 * excluded, because the memory at an address may have been freed and allocated again. */
static int dpari_pt_is_like_last(const dpari_points *plan, const dpar_points_field *fields,
                                 int32_t n)
{
    const dpar_points_field *last = &plan->last_field;
    return n == 1 && last->type != DPAR_TYPE_NONE && plan->x.shared == 0 && fields &&
           fields->data && fields->type == last->type && !fields->ghosts == !last->ghosts &&
           fields->components == last->components && fields->stride == last->stride &&
           fields->component_stride == last->component_stride;
}

/* Returns the number of packed bytes of `values` values of all vectors. */
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

/* Sets the bytes of the messages of an exchange of the plan's vectors. */
static void dpari_pt_set_messages(dpari_points *plan)
{
    int32_t i;
    for (i = 0; i < plan->x.peers && plan->messages_to > 0; i++) {
        dpari_exchange_flow *flow = &plan->x.flow[i];
        if (plan->x.peer[i].world < 0) {
            flow->out_bytes[0] = flow->in_bytes[1] = dpari_pt_bytes(plan, plan->peer[i].send.count);
            flow->in_bytes[0] = flow->out_bytes[1] =
                dpari_pt_bytes(plan, plan->peer[i].receive.count);
        }
    }
}

/* Checks and stores the vectors that the caller passes. */
static dpar_status dpari_pt_set_vectors(dpari_points *plan, const dpar_points_field *fields,
                                        int32_t n)
{
    dpar_comm *comm = plan->head.comm;
    dpar_status status;
    int64_t point = 0;
    int32_t i;
    if (dpari_pt_is_like_last(plan, fields, n)) {
        dpari_pt_place_vector(plan, fields, plan->vector);
        return DPAR_OK;
    }
    plan->last_field.type = DPAR_TYPE_NONE;
    if (n < 1 || n > DPARI_PT_MOST || !fields) {
        return dpari_comm_wrong(
            comm, "points exchange of %d vectors (0 if fields is NULL): 1 to %d are allowed",
            fields ? n : 0, (int32_t)DPARI_PT_MOST);
    }
    for (i = 0; i < n; i++) {
        status = dpari_pt_check_vector(plan, &fields[i], i);
        if (status != DPAR_OK) {
            return status;
        }
        point += dpar_type_bytes(fields[i].type) * dpari_pt_components(&fields[i]);
    }
    if (n > plan->staging_vectors ||
        dpari_pt_places_bytes(n) + dpari_pt_packed_bytes(plan, n, point) > plan->staging_turn) {
        status = dpari_pt_grow(plan, n, point);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (i = 0; i < n; i++) {
        dpari_pt_set_vector(plan, &fields[i], &plan->vector[i]);
    }
    plan->vectors = n;
    plan->point = point;
    plan->x.items = n;
    dpari_pt_set_messages(plan);
    if (n == 1) {
        plan->last_field = fields[0];
    }
    return DPAR_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Returns the turn of the current exchange. If no peer shares memory, one turn is enough, because
 * messages have been sent when an exchange ends. */
static unsigned char *dpari_pt_turn(const dpari_points *plan)
{
    return plan->turns + (plan->x.shared > 0 ? plan->x.count & 1 : 0) * plan->staging_turn;
}

/* Returns where the packed values begin in this turn. */
static unsigned char *dpari_pt_packed(const dpari_points *plan)
{
    return dpari_pt_turn(plan) + dpari_pt_places_bytes(plan->vectors);
}

/* Returns the offset of the values that this rank packs for peer i. */
static int64_t dpari_pt_out_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_peer *peer = &plan->peer[i];
    return dpari_pt_begins(dpari_pt_is_adjoint(plan) ? peer->receives_before : peer->sends_before,
                           i, plan->point, plan->vectors);
}

/* Returns the offset of the values that peer i has packed for this rank, in the peer's turn. */
static int64_t dpari_pt_in_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_record *record = &plan->peer[i].theirs;
    return dpari_pt_begins(dpari_pt_is_adjoint(plan) ? record->receives_before
                                                     : record->sends_before,
                           record->number, plan->point, plan->vectors);
}

/* The next two functions return the list of the values that are sent to a peer, and of those that
 * are received from it. */
static const dpari_pt_list *dpari_pt_gives(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return dpari_pt_is_adjoint(plan) ? &peer->receive : &peer->send;
}

static const dpari_pt_list *dpari_pt_takes(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return dpari_pt_is_adjoint(plan) ? &peer->send : &peer->receive;
}

/* The next two functions describe where one piece of the points of a vector is: in the caller's
 * memory, and packed at `at`. */
static dpari_pt_side dpari_pt_side_of(const dpari_pt_vector *vector, int ghosts, int32_t piece)
{
    dpari_pt_side side;
    side.at = (ghosts ? vector->ghosts : vector->own) + piece * vector->component;
    side.stride = vector->stride;
    return side;
}

static dpari_pt_side dpari_pt_dense_side(const dpari_pt_vector *vector, unsigned char *at,
                                         int32_t piece)
{
    dpari_pt_side side;
    side.at = at + piece * vector->size;
    side.stride = vector->point;
    return side;
}

/* True if the values of a message are adjacent in the vector, so that they need not be packed. */
static int dpari_pt_is_whole(const dpari_points *plan, const dpari_pt_list *list)
{
    return plan->vectors == 1 && list->kind == DPARI_PT_ONE && plan->vector[0].pieces == 1 &&
           plan->vector[0].stride == plan->vector[0].size;
}

/* True if peer i reads this vector of this rank in place. */
static int dpari_pt_lends(const dpari_points *plan, int32_t i, const dpari_pt_vector *vector)
{
    const dpari_pt_list *list = &plan->peer[i].send;
    return !dpari_pt_is_adjoint(plan) && plan->x.peer[i].world >= 0 &&
           dpari_pt_is_direct(plan, vector->ref, vector->size, list->count, list->runs);
}

/* Prefetches `bytes` bytes for writing, in lines of 64 bytes. Every line is prefetched, because the
 * hardware fetches lines in pairs: it would fetch a line that is left out for reading only, and a
 * write to it would wait twice (measured: 4.5 us instead of 2.5 for 8 KiB). */
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

/* Packs a vector of one piece into memory that another core has read before. Because the cache of
 * that core still has the lines, they are prefetched one bite ahead of the copy. Scattered values
 * are first gathered in private memory, then written in one go. */
static void dpari_pt_pack_shared(const dpari_points *plan, const dpari_pt_vector *vector,
                                 const dpari_pt_list *list, dpari_pt_side mine, unsigned char *to)
{
    const int64_t all = list->count * vector->size;
    const int64_t bite = dpari_most(DPARI_PT_BITE / vector->size, 1); /* values */
    const int scattered = list->kind == DPARI_PT_EACH || vector->stride != vector->size;
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
        dpari_pt_move(&dense, dpari_pt_dense_side(vector, scattered ? plan->aside : to + at, 0),
                      &part, mine, vector->size);
        if (scattered) {
            dpari_elements_bits(to + at, plan->aside, (size_t)(part.count * vector->size));
        }
    }
}

/* Packs a vector for a peer. If shared is 1, another core reads the packed values, which are then
 * written in bites, or packed in private memory and copied at once. The adjoint sets the packed
 * ghosts to 0. */
static void dpari_pt_pack_vector(dpari_points *plan, const dpari_pt_vector *vector,
                                 const dpari_pt_list *list, unsigned char *to, int shared)
{
    const dpari_pt_list dense = dpari_pt_dense(list->count);
    const int bites = shared && list->kind != DPARI_PT_RUNS && vector->pieces == 1;
    const int aside = shared && !bites;
    int32_t piece;
    for (piece = 0; piece < vector->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(vector, dpari_pt_is_adjoint(plan), piece);
        if (bites) {
            dpari_pt_pack_shared(plan, vector, list, mine, to);
        } else {
            dpari_pt_move(&dense, dpari_pt_dense_side(vector, aside ? plan->aside : to, piece),
                          list, mine, vector->size);
        }
        if (dpari_pt_is_adjoint(plan) && !plan->shared.memory) {
            dpari_pt_clear(list, mine, vector->size);
        }
    }
    if (aside) {
        dpari_elements_bits(to, plan->aside, (size_t)(list->count * vector->point));
    }
}

/* Packs the values of all vectors for peer i, except for vectors that it reads in place. Returns
 * where they begin. */
static unsigned char *dpari_pt_pack_peer(dpari_points *plan, int32_t i)
{
    const dpari_pt_list *list = dpari_pt_gives(plan, &plan->peer[i]);
    const int shared = plan->x.peer[i].world >= 0 && i != plan->x.self;
    const dpari_pt_vector *first = plan->vector;
    dpari_exchange_flow *flow = &plan->x.flow[i];
    unsigned char *const out = dpari_pt_packed(plan) + dpari_pt_out_at(plan, i), *to = out;
    int32_t k;
    if (!shared && plan->vectors == 1 && first->pieces == 1 && !dpari_pt_is_adjoint(plan)) {
        const dpari_pt_list dense = dpari_pt_dense(list->count); /* the usual message */
        dpari_pt_move(&dense, dpari_pt_dense_side(first, out, 0), list,
                      dpari_pt_side_of(first, 0, 0), first->size);
        return out;
    }
    flow->lends[DPARI_EXCHANGE_FORWARD] = 0;
    for (k = 0; k < plan->vectors && list->count > 0; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        if (dpari_pt_lends(plan, i, vector)) {
            flow->lends[DPARI_EXCHANGE_FORWARD] = shared;
            plan->x.lends |= shared;
        } else {
            dpari_pt_pack_vector(plan, vector, list, to, shared);
        }
        to += plan->vectors == 1 ? 0 : dpari_pt_block(list->count, vector->point);
    }
    return out;
}

/* Writes the places of the vectors into this turn, where peers that read them in place find them.
 */
static void dpari_pt_write_places(const dpari_points *plan)
{
    dpari_pt_place *place = (dpari_pt_place *)(void *)dpari_pt_turn(plan);
    int32_t k;
    for (k = 0; k < plan->vectors; k++) {
        place[k].ref = plan->vector[k].ref;
        place[k].stride = plan->vector[k].stride;
        place[k].component = plan->vector[k].component;
        place[k].size = plan->vector[k].size;
    }
}

/* Packs the values for the peers that share memory. Values of shared ids that this rank has several
 * times are combined before that, also if there are no such peers. In an adjoint, ghosts of this
 * rank's own values are packed as well, so that they are combined in the order of ranks. */
static dpar_status dpari_pt_pack(void *of, int32_t s)
{
    dpari_points *plan = (dpari_points *)of;
    const double began = dpari_exchange_clock(&plan->x);
    int32_t i;
    (void)s;
    plan->x.lends = 0;
    if (plan->shared.memory) {
        dpari_pt_combine_shared(plan, DPARI_PT_FOLD);
    }
    for (i = 0; i < plan->x.peers; i++) {
        if (plan->x.peer[i].world >= 0 && (i != plan->x.self || dpari_pt_is_adjoint(plan))) {
            (void)dpari_pt_pack_peer(plan, i);
        }
    }
    if (plan->x.lends) {
        dpari_pt_write_places(plan);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_PACKING, began);
    return DPAR_OK;
}

/* Returns where the message from peer i arrives, which is in the ghosts if these are adjacent. With
 * `sends`, packs the values for peer i, unless they are adjacent, and returns where they are. */
static unsigned char *dpari_pt_message(void *of, int32_t s, int32_t i, int sends)
{
    dpari_points *plan = (dpari_points *)of;
    dpari_pt_peer *peer = &plan->peer[i];
    const dpari_pt_list *list = sends ? dpari_pt_gives(plan, peer) : dpari_pt_takes(plan, peer);
    const int whole = !dpari_pt_is_adjoint(plan) && dpari_pt_is_whole(plan, list);
    const dpari_pt_vector *vector = plan->vector;
    int64_t before;
    (void)s;
    if (sends) {
        return whole ? vector->own + list->first * vector->stride : dpari_pt_pack_peer(plan, i);
    }
    peer->in_place = whole;
    if (whole) {
        return vector->ghosts + list->first * vector->stride;
    }
    before = dpari_pt_is_adjoint(plan) ? peer->sends_before : peer->receives_before;
    peer->arrives = plan->arrivals + dpari_pt_begins(before, i, plan->point, plan->vectors);
    return peer->arrives;
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Reads a vector of a peer in place, by the peer's list. If the components are adjacent on only one
 * of the two ranks, they are copied in the smaller pieces of the other rank. */
static dpar_status dpari_pt_read(dpari_points *plan, const dpari_pt_peer *peer,
                                 const dpari_pt_vector *vector, const dpari_pt_place *place)
{
    const int64_t size = dpari_least(vector->size, place->size);
    unsigned char *at = (unsigned char *)dpari_at(plan->x.world, place->ref);
    dpari_pt_side theirs;
    int32_t piece;
    if (at == NULL) {
        return dpari_exchange_unmapped(&plan->x, place->ref);
    }
    for (piece = 0; piece < vector->point / size; piece++) {
        theirs.at = at + piece * place->component;
        theirs.stride = place->stride;
        dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &peer->source, theirs,
                      size);
    }
    return DPAR_OK;
}

/* Takes the packed values of a vector: copies them to ghosts, or combines them with own values. */
static void dpari_pt_unpack_vector(const dpari_points *plan, const dpari_pt_vector *vector,
                                   const dpari_pt_list *list, unsigned char *from)
{
    const dpari_pt_list dense = dpari_pt_dense(list->count);
    int32_t piece;
    for (piece = 0; piece < vector->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(vector, !dpari_pt_is_adjoint(plan), piece);
        const dpari_pt_side theirs = dpari_pt_dense_side(vector, from, piece);
        if (dpari_pt_is_adjoint(plan)) {
            dpari_pt_combine(list, mine, theirs, vector->numbers, vector->type, plan->x.op);
        } else {
            dpari_pt_move(list, mine, &dense, theirs, vector->size);
        }
    }
}

/* Takes the values of all vectors of a peer. Those of shared ids are left where they are until the
 * values of all peers have arrived. from: the packed values. place: if the peer lends
 * vectors, the places of its vectors; otherwise NULL. */
static dpar_status dpari_pt_unpack(dpari_points *plan, const dpari_pt_peer *peer,
                                   unsigned char *from, const dpari_pt_place *place)
{
    const dpari_pt_list *list = dpari_pt_takes(plan, peer);
    int32_t k;
    if (plan->shared.memory) {
        plan->shared.source[peer - plan->peer].at = from;
        return DPAR_OK;
    }
    for (k = 0; k < plan->vectors; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        if (place && dpari_pt_is_direct(plan, place[k].ref, place[k].size, peer->source.count,
                                        peer->source.runs)) {
            const dpar_status status = dpari_pt_read(plan, peer, vector, &place[k]);
            if (status != DPAR_OK) {
                return status;
            }
        } else {
            dpari_pt_unpack_vector(plan, vector, list, from);
        }
        from += plan->vectors == 1 ? 0 : dpari_pt_block(list->count, vector->point);
    }
    return DPAR_OK;
}

/* Returns the turn of peer i, which is ready, or NULL if its memory cannot be mapped. */
static unsigned char *dpari_pt_their_turn(const dpari_points *plan, int32_t i)
{
    const dpari_exchange_line *line = plan->x.peer[i].line;
    dpari_pt_peer *peer = &plan->peer[i];
    if (peer->turns != line->place[DPARI_PT_TURNS]) {
        peer->mapped = (unsigned char *)dpari_at(plan->x.world, line->place[DPARI_PT_TURNS]);
        if (peer->mapped == NULL) {
            return NULL;
        }
        peer->turns = line->place[DPARI_PT_TURNS];
    }
    return peer->mapped + (plan->x.count & 1) * (int64_t)line->place[DPARI_PT_TURN_BYTES];
}

/* Takes the values of a peer that shares memory and is ready. */
static dpar_status dpari_pt_take_shared(dpari_points *plan, int32_t i)
{
    unsigned char *turn = dpari_pt_their_turn(plan, i);
    const dpari_exchange_peer *run = &plan->x.peer[i];
    if (turn == NULL) {
        return dpari_exchange_unmapped(&plan->x, run->line->place[DPARI_PT_TURNS]);
    }
    return dpari_pt_unpack(plan, &plan->peer[i],
                           turn + dpari_pt_places_bytes(plan->vectors) + dpari_pt_in_at(plan, i),
                           run->lends ? (const dpari_pt_place *)(const void *)turn : NULL);
}

/* Copies own values to the ghosts with the same ids. In an adjoint, dpari_pt_take takes these
 * ghosts, in the order of ranks. Shared ids that only this rank has are combined while the peers
 * pack. */
static void dpari_pt_take_own(void *of, int32_t s)
{
    dpari_points *plan = (dpari_points *)of;
    const dpari_pt_peer *peer;
    double began;
    int32_t k, piece;
    (void)s;
    if (!plan->shared.memory && (plan->x.self < 0 || dpari_pt_is_adjoint(plan))) {
        return;
    }
    began = dpari_exchange_clock(&plan->x);
    if (plan->shared.memory) {
        dpari_pt_combine_shared(plan, DPARI_PT_LOCAL);
        dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
        return;
    }
    peer = &plan->peer[plan->x.self];
    for (k = 0; k < plan->vectors; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        for (piece = 0; piece < vector->pieces; piece++) {
            dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &peer->send,
                          dpari_pt_side_of(vector, 0, piece), vector->size);
        }
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
}

/* Takes the values of peer i, which have arrived. */
static dpar_status dpari_pt_take(void *of, int32_t s, int32_t i)
{
    dpari_points *plan = (dpari_points *)of;
    dpari_pt_peer *peer = &plan->peer[i];
    const double began = dpari_exchange_clock(&plan->x);
    dpar_status status = DPAR_OK;
    (void)s;
    if (i == plan->x.self) {
        status =
            dpari_pt_unpack(plan, peer, dpari_pt_packed(plan) + dpari_pt_out_at(plan, i), NULL);
    } else if (plan->x.peer[i].world >= 0) {
        status = dpari_pt_take_shared(plan, i);
    } else if (!peer->in_place) {
        status = dpari_pt_unpack(plan, peer, peer->arrives, NULL);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
    return status;
}

/* Combines the values of shared ids, after those of all peers have arrived. */
static DPARI_COLD dpar_status dpari_pt_finish(void *of, int32_t s)
{
    dpari_points *plan = (dpari_points *)of;
    const double began = dpari_exchange_clock(&plan->x);
    (void)s;
    dpari_pt_combine_shared(plan, DPARI_PT_FINAL);
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_pt_set_functions(dpari_points *plan)
{
    plan->x.plan = plan;
    plan->x.message = dpari_pt_message;
    plan->x.take = dpari_pt_take;
    plan->x.finish = plan->shared.memory ? dpari_pt_finish : NULL;
    if (plan->x.shared > 0 || plan->x.self >= 0 || plan->shared.memory) {
        plan->x.pack = dpari_pt_pack;
        plan->x.take_own = dpari_pt_take_own;
    }
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Begins an exchange. op: DPAR_COPY for a forward exchange. Exchanges of shared ids are adjoints
 * with any operation, which the hash compares. */
static dpar_status dpari_pt_begin(dpari_points *plan, const dpar_points_field *fields, int32_t n,
                                  int32_t op, int shared)
{
    uint64_t hash = 0;
    dpar_status status = dpari_exchange_may_begin(&plan->x);
    if (shared != (plan->shared.memory != NULL)) {
        status = dpari_comm_wrong(
            plan->head.comm, "dpar_points_combine is for plans of shared ids, and only for them");
    }
    if (status == DPAR_OK) {
        status = dpari_pt_set_vectors(plan, fields, n);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (plan->x.shared > 0) {
        hash = dpari_pt_hash_vectors(fields, n, op);
    }
    plan->shared.op = op;
    if (shared && op != DPAR_MAX && op != DPAR_MIN) {
        op = DPAR_SUM;
    }
    return dpari_exchange_begin(&plan->x, op, hash);
}

DPAR_API dpar_status dpar_points_begin_many(dpar_points *points, const dpar_points_field *fields,
                                            int32_t n)
{
    return points ? dpari_pt_begin(dpari_pt_of(points), fields, n, DPAR_COPY, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_reduce_begin_many(dpar_points *points,
                                                   const dpar_points_field *fields, int32_t n,
                                                   int32_t op)
{
    int32_t i;
    if (!points) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(
            points->comm, "dpar_points_reduce_begin_many: op %d is not DPAR_SUM, _MAX or _MIN", op);
    }
    for (i = 0; i < n && fields; i++) {
        if (!dpari_type_can_reduce(fields[i].type)) {
            return dpari_comm_wrong(points->comm, "vector %d of type %s cannot be combined", i,
                                    dpar_type_name(fields[i].type));
        }
    }
    return dpari_pt_begin(dpari_pt_of(points), fields, n, op, 0);
}

DPAR_API dpar_status dpar_points_combine_begin_many(dpar_points *points,
                                                    const dpar_points_field *fields, int32_t n,
                                                    int32_t op)
{
    if (!points) {
        return DPAR_E_ARG;
    }
    if (op < 0 || op >= DPAR_OP_COUNT) {
        return dpari_comm_wrong(points->comm, "dpar_points_combine: op %d is none of 0 to %d", op,
                                DPAR_OP_COUNT - 1);
    }
    return dpari_pt_begin(dpari_pt_of(points), fields, n, op, 1);
}

DPAR_API dpar_status dpar_points_test(dpar_points *points)
{
    return points ? dpari_exchange_advance(&dpari_pt_of(points)->x, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_end(dpar_points *points)
{
    return points ? dpari_exchange_advance(&dpari_pt_of(points)->x, 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_exchange_many(dpar_points *points, const dpar_points_field *fields,
                                               int32_t n)
{
    const dpar_status status = dpar_points_begin_many(points, fields, n);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_reduce_begin_many(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_combine_many(dpar_points *points, const dpar_points_field *fields,
                                              int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_combine_begin_many(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_free(dpar_points *points)
{
    dpari_points *plan = dpari_pt_of(points);
    dpar_comm *of;
    dpar_status status;
    int32_t refused;
    if (!points) {
        return DPAR_OK;
    }
    of = plan->x.world ? plan->x.node : plan->head.comm;
    status = dpari_exchange_close(&plan->x, "dpar_points_free: ", &refused);
    if (refused) {
        return status;
    }
    dpar_comm_release(of, plan->staging);
    dpar_comm_release(of, plan->lists);
    dpar_comm_release(plan->head.comm, plan->shared.memory);
    return dpari_object_end(status, plan->owned);
}
