/* SPDX-License-Identifier: MIT-0 */
/* Runs exchanges of points: begin, test and end, forward and adjoint.
 *
 * points_plan.h describes the protocol. Begin posts the receives, packs the values for each peer,
 * publishes them (`ready`) and sends messages. Test and end take the values of the peers. A forward
 * exchange stores them in ghosts as they arrive. An adjoint combines them with own values in the
 * order of ranks, so that sums do not depend on arrival. End then waits until peers have read this
 * rank's vectors and messages have been sent. */
#include "points.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../host/elements.h"
#include "points_list.h"
#include "points_plan.h"
#include "points_wait.h"

/* Stages of an exchange after begin: taking the values of peers, then waiting until peers no longer
 * need those of this rank. */
enum { DPARI_PT_TAKING, DPARI_PT_LEAVING };

/* ---- vectors --------------------------------------------------------------------------------- */

/* Checks vector i of an exchange. Returns DPAR_E_ARG with a message in comm->why. */
static dpar_status dpari_pt_check_vector(const dpari_points *plan, const dpar_points_field *field,
                                         int32_t i)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t n = dpari_pt_components(field);
    const int64_t own = plan->head.own_count, all = own + plan->head.ghost_count;
    if (dpar_type_bytes(field->type) == 0 || field->components < 0 || field->components > 1 << 20) {
        return dpari_comm_wrong(
            comm, "vector %d: %d components of type %s (allowed: 0 to 2^20, of a type with bytes)",
            i, field->components, dpar_type_name(field->type));
    }
    if (field->stride < 0 || field->component_stride < 0 || field->stride > INT64_C(1) << 31 ||
        field->component_stride > INT64_C(1) << 40 ||
        (field->component_stride <= 1 && field->stride > 0 && field->stride < n)) {
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
    if (field->ghosts == NULL && field->data != NULL) {
        to->ghosts = to->own + plan->head.own_count * to->stride;
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
    if (plan->shared > 0 && plan->method != DPAR_POINTS_PACKED && field->data) {
        to->ref = dpari_ref(plan->world, field->data, 1);
    }
}

/* Returns the number of bytes at the beginning of a turn that hold the vectors' places. Packed
 * values follow. */
static int64_t dpari_pt_places_bytes(int64_t n)
{
    const int64_t bytes = n * (int64_t)sizeof(dpari_pt_place);
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

/* Returns the number of bytes of the packed values of all peers, which suffices for both forward
 * and adjoint exchanges. */
static int64_t dpari_pt_packed_bytes(const dpari_points *plan, int64_t n, int64_t point)
{
    return dpari_pt_begins(dpari_most(plan->sends, plan->receives), plan->head.peer_count, point,
                           n) +
           DPARI_LINE;
}

/* Waits until the peers that share memory have taken all values of exchange `last`. A peer that was
 * ready for a later exchange has taken them. */
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

/* Allocates larger staging memory for n vectors, which together have `point` bytes per point. A
 * failure breaks the communicator, because the other ranks have begun the exchange. */
static DPARI_COLD dpar_status dpari_pt_grow(dpari_points *plan, int64_t n, int64_t point)
{
    const int64_t head = dpari_room_up(n * (int64_t)sizeof(dpari_pt_vector)) + DPARI_LINE;
    const int64_t places = dpari_pt_places_bytes(n), packed = dpari_pt_packed_bytes(plan, n, point);
    const int64_t vectors = (head + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
    dpar_comm *of = plan->world ? plan->node : plan->head.comm;
    void *memory = NULL;
    dpar_status status = dpari_pt_await_done(plan, plan->count);
    if (status != DPAR_OK) {
        return status;
    }
    dpar_comm_release(of, plan->staging);
    plan->staging = NULL;
    status = dpar_comm_alloc(
        of, vectors + 2 * (places + packed) + (plan->messages_to > 0 ? 2 : 1) * packed, &memory);
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

/* Returns the kind of an exchange, which peers compare as part of the word `ready`: the operation,
 * and a hash of the number, types and components of the vectors. */
static uint64_t dpari_pt_kind(const dpari_points *plan, const dpar_points_field *fields, int32_t n)
{
    uint64_t op = 0;
    uint64_t hash = dpari_hash(0, n);
    int32_t i;
    for (i = 0; i < n; i++) {
        hash = dpari_hash(hash, fields[i].type + 64 * (int64_t)dpari_pt_components(&fields[i]));
    }
    if (plan->adjoint) {
        op = 3;
        if (plan->op != DPAR_MIN) {
            op = plan->op == DPAR_SUM ? 1 : 2;
        }
    }
    return (hash & (DPARI_PT_KIND - DPARI_PT_OP)) | op;
}

/* True if there is one vector, with the type, components and strides of the last exchange's vector,
 * so that it need not be checked again. Its address may differ. Plans whose peers read in place are
 * excluded, because the memory at an address may have been freed and allocated again. */
static int dpari_pt_is_like_last(const dpari_points *plan, const dpar_points_field *fields,
                                 int32_t n)
{
    const dpar_points_field *last = &plan->last_field;
    return n == 1 && last->type != DPAR_TYPE_NONE && plan->shared == 0 && fields && fields->data &&
           fields->type == last->type && !fields->ghosts == !last->ghosts &&
           fields->components == last->components && fields->stride == last->stride &&
           fields->component_stride == last->component_stride;
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
    plan->again = 0;
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
    return plan->turns + (plan->shared > 0 ? plan->count & 1 : 0) * plan->staging_turn;
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
    return dpari_pt_begins(plan->adjoint ? peer->receives_before : peer->sends_before, i,
                           plan->point, plan->vectors);
}

/* Returns the offset of the values that peer i has packed for this rank, in the peer's turn. */
static int64_t dpari_pt_in_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_record *record = &plan->peer[i].theirs;
    return dpari_pt_begins(plan->adjoint ? record->receives_before : record->sends_before,
                           record->number, plan->point, plan->vectors);
}

/* The next two functions return the list of the values that are sent to a peer, and of those that
 * are received from it. */
static const dpari_pt_list *dpari_pt_gives(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return plan->adjoint ? &peer->receive : &peer->send;
}

static const dpari_pt_list *dpari_pt_takes(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return plan->adjoint ? &peer->send : &peer->receive;
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

/* True if a peer reads this vector of this rank in place. */
static int dpari_pt_lends(const dpari_points *plan, const dpari_pt_peer *peer,
                          const dpari_pt_vector *vector)
{
    return !plan->adjoint && peer->world >= 0 &&
           dpari_pt_is_direct(plan, vector->ref, vector->size, peer->send.count, peer->send.runs);
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

/* Packs the values of all vectors for peer i, except for vectors that it reads in place. Returns
 * where they begin. */
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

/* Publishes that all values are packed, and writes the places of vectors if some peer reads them.
 */
static void dpari_pt_publish(dpari_points *plan)
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

/* ---- messages -------------------------------------------------------------------------------- */

/* Describes message n. The calls were zeroed by planning; the other fields stay 0. */
static void dpari_pt_call(dpari_points *plan, int32_t n, const dpari_pt_peer *peer, int32_t kind,
                          unsigned char *at, int64_t bytes)
{
    dpar_call *call = &plan->call[n];
    call->kind = kind;
    call->type = DPAR_U8;
    call->root = peer->rank;
    call->tag = plan->tag;
    call->count = bytes;
    call->in = kind == DPAR_CALL_SEND ? at : NULL;
    call->out = kind == DPAR_CALL_SEND ? NULL : at;
}

/* Posts the receives, before anything is sent, so that messages need not be buffered when they
 * arrive. They are received directly in the ghosts if these are adjacent. */
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
        if (peer->in_place) {
            peer->arrives = plan->vector[0].ghosts + list->first * plan->vector[0].stride;
        } else {
            const int64_t before = plan->adjoint ? peer->sends_before : peer->receives_before;
            peer->arrives = plan->arrivals + dpari_pt_begins(before, i, plan->point, plan->vectors);
        }
        dpari_pt_call(plan, n++, peer, DPAR_CALL_RECV, peer->arrives,
                      dpari_pt_bytes(plan, list->count));
    }
    plan->receives_posted = n;
    return n > 0 ? dpari_batch_checked(plan->head.comm, plan->call, n, plan->work) : DPAR_OK;
}

/* Packs the values for peers that get messages, and posts the sends. */
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
    if (plan->sends_posted == 0) {
        return DPAR_OK;
    }
    return dpari_batch_checked(plan->head.comm, plan->call + plan->receives_posted,
                               plan->sends_posted, plan->work + plan->receives_posted);
}

/* ---- messages of the last exchange, posted again ----------------------------------------------
 *
 * A solver runs the same exchange over and over. If it is a forward exchange of one vector, and
 * each peer sends one message directly into the ghosts, the calls remain as they are, except for
 * the addresses. */

/* True if the next exchange of such a vector can post the calls of this exchange again. */
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

/* Posts the calls of the last exchange again, with the addresses of this vector. */
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
            call->out = vector->ghosts + list->first * vector->stride;
            call++;
        }
    }
    status = dpari_batch_checked(plan->head.comm, plan->call, plan->receives_posted, plan->work);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->head.peer_count; i++) {
        const dpari_pt_list *list = &plan->peer[i].send;
        if (list->count == 0) {
            continue;
        }
        if (dpari_pt_is_whole(plan, list)) {
            call->in = vector->own + list->first * vector->stride;
        } else { /* packed at the same address as in the last exchange */
            const dpari_pt_list dense = dpari_pt_dense(list->count);
            unsigned char *to = (unsigned char *)(uintptr_t)call->in;
            dpari_pt_move(&dense, dpari_pt_dense_side(vector, to, 0), list,
                          dpari_pt_side_of(vector, 0, 0), vector->size);
        }
        call++;
    }
    return dpari_batch_checked(plan->head.comm, plan->call + plan->receives_posted,
                               plan->sends_posted, plan->work + plan->receives_posted);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Takes packed values of a peer: copies them to ghosts, or combines them with own values. */
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

/* Reads a vector of a peer in place, by the peer's list. If the components are adjacent on only one
 * of the two ranks, they are copied in the smaller pieces of the other rank. */
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

/* Returns the turn of a peer that is ready, or NULL if its memory cannot be mapped. */
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

/* Takes the values of a peer that shares memory and is ready. */
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

/* Copies own values to the ghosts with the same ids. In an adjoint, these ghosts were packed first,
 * so that they are combined in the order of ranks. */
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
    if (peer->seen == plan->count && (word & DPARI_PT_KIND) != plan->kind) {
        return dpari_pt_differs(plan, i, word & DPARI_PT_KIND);
    }
    return DPAR_OK;
}

/* Waits for message n if wait is 1, or tests it if wait is 0. With DPARI_PT_PEEK it does neither,
 * because a wait follows anyway. */
static dpar_status dpari_pt_message(dpari_points *plan, int32_t n, int wait)
{
    const double began = dpari_pt_clock(plan);
    dpar_status status;
    if (wait == DPARI_PT_PEEK) {
        return DPAR_MORE;
    }
    status = wait ? dpar_wait(&plan->work[n]) : dpar_test(&plan->work[n]);
    dpari_pt_count(plan, DPARI_PT_WAITING, began);
    return status;
}

/* Waits for all messages of an exchange that was posted again. */
static dpar_status dpari_pt_end_again(dpari_points *plan)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->receives_posted + plan->sends_posted && status == DPAR_OK; i++) {
        status = dpari_pt_message(plan, i, 1);
    }
    return status;
}

/* Takes the values of peer i, whose message is number n, once they are ready. */
static dpar_status dpari_pt_take(dpari_points *plan, int32_t i, int32_t n, int wait)
{
    dpari_pt_peer *peer = &plan->peer[i];
    dpar_status status = DPAR_OK;
    double began;
    if (i != plan->self) {
        status = peer->world >= 0 ? dpari_pt_meet(plan, i, wait) : dpari_pt_message(plan, n, wait);
    }
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

/* Takes the values of all peers. A forward exchange first takes the values of the peers that are
 * ready, then waits for the other peers. An adjoint waits for each peer in the order of ranks. If
 * wait is 0, returns DPAR_MORE if some peer is not ready. */
static dpar_status dpari_pt_take_all(dpari_points *plan, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass, n;
    int32_t first = wait; /* the passes are PEEK and 1, or only 1, or only 0 */
    if (wait && !plan->adjoint && plan->shared > 0) {
        first = DPARI_PT_PEEK;
    }
    for (pass = first; pass <= wait; pass += 2) {
        all = DPAR_OK;
        n = 0;
        for (i = 0; i < plan->head.peer_count; i++) {
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

/* Waits until peers have read this rank's vectors and messages have been sent. If wait is 0,
 * returns DPAR_MORE instead of waiting. */
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

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Breaks the plan's communicator if that of the node is broken, because messages of other nodes may
 * then never arrive. */
static void dpari_pt_break_both(dpari_points *plan)
{
    if (plan->node->status != DPAR_OK && plan->head.comm->status == DPAR_OK) {
        dpar_comm_abort(plan->head.comm, plan->node->status, plan->node->why.text);
    }
}

/* Ends an exchange that failed with `status`, so that nothing of it stays in progress. */
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

/* Packs values for peers that share memory, after they have taken the values that this turn held
 * before, and publishes them. */
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
        dpari_pt_publish(plan);
    }
    return status;
}

/* Posts receives, packs and publishes values, and posts sends. */
static dpar_status dpari_pt_start(dpari_points *plan)
{
    dpar_status status;
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
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (plan->shared > 0 || plan->self >= 0) {
        status = dpari_pt_offer(plan);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (plan->messages_to > 0) {
        status = dpari_pt_send(plan);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (plan->self >= 0 && !plan->adjoint) {
        status = dpari_pt_take(plan, plan->self, 0, 0);
        if (status != DPAR_OK) {
            return status;
        }
    }
    plan->again = dpari_pt_may_repeat(plan);
    return DPAR_OK;
}

/* Begins an exchange. op: DPAR_COPY for forward, otherwise the operation of the adjoint. */
static dpar_status dpari_pt_begin(dpari_points *plan, const dpar_points_field *fields, int32_t n,
                                  int32_t op)
{
    dpar_status status = DPAR_OK;
    if (plan->shared > 0) { /* the others may have timed out while they waited for this rank */
        status = dpari_group_broken(dpari_group_of(plan->node));
    }
    if (status == DPAR_OK) {
        status = dpari_pt_broken(plan);
    }
    if (status != DPAR_OK) {
        dpari_pt_break_both(plan);
        return status;
    }
    if (plan->active) {
        return dpari_comm_wrong(plan->head.comm,
                                "points exchange %ld has not ended: call dpar_points_end first",
                                plan->count);
    }
    status = dpari_pt_set_vectors(plan, fields, n);
    if (status == DPAR_OK) {
        status = dpari_rest_post(plan->head.comm);
    }
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

/* Publishes that this rank has taken all values. Peers are woken only if one may wait for that. */
static void dpari_pt_publish_done(dpari_points *plan)
{
    if (plan->lent || plan->oneway) {
        dpari_publish(plan->world, &plan->line->done, (uint64_t)plan->count);
    } else {
        DPARI_STORE(&plan->line->done, (uint64_t)plan->count);
    }
}

/* Advances an exchange, to its end if wait is 1. If its communicator has been closed, the exchange
 * is not touched any more, because its memory has been freed. */
static dpar_status dpari_pt_advance(dpari_points *plan, int wait)
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
        if (status == DPAR_OK && plan->shared > 0) {
            /* A peer that had timed out may have packed other values while this rank read. */
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            status = dpari_group_broken(dpari_group_of(plan->node));
        }
        if (status < DPAR_OK && plan->shared > 0) {
            dpari_pt_break_both(plan);
        } else if (status == DPAR_OK && plan->shared > 0) {
            dpari_pt_publish_done(plan);
        }
        plan->stage = status == DPAR_OK ? DPARI_PT_LEAVING : plan->stage;
    }
    if (status == DPAR_OK) {
        status = dpari_pt_leave(plan, wait);
    }
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
        return dpari_comm_wrong(
            points->comm, "dpar_points_reduce_begin: op %d is not DPAR_SUM, _MAX or _MIN", op);
    }
    for (i = 0; i < n && fields; i++) {
        if (!dpari_type_can_reduce(fields[i].type)) {
            return dpari_comm_wrong(points->comm, "vector %d of type %s cannot be combined", i,
                                    dpar_type_name(fields[i].type));
        }
    }
    return dpari_pt_begin(dpari_pt_of(points), fields, n, op);
}

DPAR_API dpar_status dpar_points_test(dpar_points *points)
{
    return points ? dpari_pt_advance(dpari_pt_of(points), 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_end(dpar_points *points)
{
    return points ? dpari_pt_advance(dpari_pt_of(points), 1) : DPAR_E_ARG;
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
    dpar_comm *of;
    dpar_status status;
    if (!points) {
        return DPAR_OK;
    }
    of = plan->world ? plan->node : plan->head.comm;
    if (plan->head.comm->status != DPAR_OK && dpari_ended_is(plan->head.comm)) {
        plan->active = plan->receives_posted = plan->sends_posted = 0;
    }
    status = dpari_pt_broken(plan);
    if (plan->active && status == DPAR_OK) {
        return dpari_comm_wrong(plan->head.comm,
                                "points exchange %ld has not ended: call dpar_points_end first",
                                plan->count);
    }
    if (status == DPAR_OK) {
        /* Peers may still read this rank's words. */
        status = dpar_barrier(plan->head.comm, NULL);
    } else if (plan->active) {
        status = dpari_pt_drop(plan, status);
    }
    dpar_comm_release(of, plan->staging);
    dpar_comm_release(of, plan->lists);
    return dpari_object_end(status, plan->owned);
}
