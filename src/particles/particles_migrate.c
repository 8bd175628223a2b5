/* SPDX-License-Identifier: MIT-0 */
/* Sends particles to the ranks that own their positions.
 *
 * Each rank lists the particles that leave its block. A particle that leaves is packed as a row:
 * its fields, one after the other. Rows for neighbours are sent to them. A rank is its own
 * neighbour too, for particles that leave the box at a periodic end and are moved back into the
 * same block. An all-reduce then finds out whether some rank has failed or has particles that go
 * further. Those are sent in an all-to-all. Nothing is written to the caller's arrays before all
 * ranks know that everything has arrived and that no capacity is too small. */
#include "particles.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/object_memory.h"
#include "neighbours_private.h"
#include "particles_plan.h"

/* A migration in progress. */
typedef struct dpari_pp_migration {
    const char *caller;
    dpar_particles_arrays *arrays;
    dpari_pp_position position;
    int32_t fields;
    int64_t row; /* bytes of a row */
    /* Number of particles that leave, which are in plan->border. For each of them, plan->owner has
     * the number of the neighbour to which it goes, or -1 - rank if it goes to a rank that is no
     * neighbour. `distant` is the number of the latter. */
    int64_t leaving, distant;
    int64_t arriving; /* number of particles that arrive */
    /* [4][size]: bytes to each rank, where they begin, bytes from each rank, where those begin */
    int64_t *far_count;
    unsigned char *far_in;       /* far rows that arrive, followed by those that are sent */
    int64_t far_bytes, far_sent; /* bytes of far rows that arrive, and of those that are sent */
} dpari_pp_migration;

/* True if particle i is certainly in this rank's block. False for a NaN. */
DPARI_ALWAYS_INLINE int dpari_pp_stays(const dpari_particles *plan,
                                       const dpari_pp_position *position, int64_t i, int32_t dims)
{
    int stays = 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        const double x = dpari_pp_get(position, i, d);
        stays &= (x >= plan->low_open[d]) & (x < plan->high_open[d]);
    }
    return stays;
}

/* Returns the number of the neighbour that owns the block at coord, or -1 - rank if the owner is no
 * neighbour. */
static int32_t dpari_pp_neighbour(const dpari_particles *plan, const int32_t *coord)
{
    const int32_t rank = dpari_pp_rank(plan, coord);
    int32_t i;
    for (i = 0; i < plan->neighbours->count; i++) {
        if (plan->neighbours->rank[i] == rank) {
            return i;
        }
    }
    return -1 - rank;
}

/* Returns the dim in which particle i is most widths of the box away from it. */
static DPARI_COLD int32_t dpari_pp_farthest(const dpari_particles *plan,
                                            const dpari_pp_position *position, int64_t i)
{
    double most = 0.0;
    int32_t d, farthest = 0;
    for (d = 0; d < plan->head.dims; d++) {
        const double from =
            (dpari_pp_get(position, i, d) - plan->low[d]) / (plan->high[d] - plan->low[d]);
        const double away = from < 0.0 ? -from : from;
        if (away > most) {
            most = away;
            farthest = d;
        }
    }
    return farthest;
}

/* Adds particle i to the particles that leave. */
static dpar_status dpari_pp_leave(dpari_particles *plan, dpari_pp_migration *move, int64_t i,
                                  dpar_why *why)
{
    double x[DPAR_PARTICLES_MAX_DIMS];
    int32_t coord[DPAR_PARTICLES_MAX_DIMS], d, owner;
    dpar_status status;
    for (d = 0; d < plan->head.dims; d++) {
        x[d] = dpari_pp_get(&move->position, i, d);
    }
    for (d = 0; d < plan->head.dims; d++) {
        if (!dpari_finite(x[d])) {
            return dpari_wrong(why, "%s: coordinate %d of particle %ld is %s; nothing was moved",
                               move->caller, d, i, x[d] != x[d] ? "NaN" : "infinite");
        }
    }
    if (!dpari_pp_locate(plan, x, move->position.single, coord)) {
        d = dpari_pp_farthest(plan, &move->position, i);
        return dpari_pp_wrong(why, "%s: particle %ld is more than 2^50 boxes away, at %.9g",
                              move->caller, i, dpari_pp_get(&move->position, i, d));
    }
    owner = dpari_pp_neighbour(plan, coord);
    status = dpari_pp_grow(plan, &plan->border, move->leaving + 1, move->leaving, why);
    if (status == DPAR_OK) {
        status = dpari_pp_grow(plan, &plan->owner, move->leaving + 1, move->leaving, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    plan->border.at[move->leaving] = (int32_t)i;
    plan->owner.at[move->leaving++] = owner;
    move->distant += owner < 0;
    return DPAR_OK;
}

/* Lists the particles that leave. */
DPARI_ALWAYS_INLINE dpar_status dpari_pp_find(dpari_particles *plan, dpari_pp_migration *move,
                                              int32_t dims, int32_t single, dpar_why *why)
{
    dpari_pp_position position = move->position;
    int64_t i;
    position.single = single;
    for (i = 0; i < move->arrays->count; i++) {
        dpar_status status;
        if (dpari_pp_stays(plan, &position, i, dims)) {
            continue;
        }
        status = dpari_pp_leave(plan, move, i, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Packs particle i as a row, with its position moved back into the box. */
static void dpari_pp_pack_row(const dpari_particles *plan, const dpari_pp_migration *move,
                              int64_t i, unsigned char *to)
{
    double x[DPAR_PARTICLES_MAX_DIMS], was[DPAR_PARTICLES_MAX_DIMS];
    int32_t coord[DPAR_PARTICLES_MAX_DIMS], f, d;
    unsigned char *at = to;
    for (d = 0; d < plan->head.dims; d++) {
        was[d] = x[d] = dpari_pp_get(&move->position, i, d);
    }
    (void)dpari_pp_locate(plan, x, move->position.single, coord);
    for (f = 0; f < move->fields; f++) {
        const dpari_pp_field *field = &plan->field[f];
        dpari_elements_bits(to, field->at + i * field->stride, (size_t)field->size);
        if (f == move->position.field) {
            at = to + move->position.offset;
        }
        to += field->size;
    }
    for (d = 0; d < plan->head.dims; d++) {
        if (x[d] < was[d] || x[d] > was[d]) {
            dpari_pp_put(move->position.single, at, d, x[d]);
        }
    }
}

/* Packs the particles that go to neighbours. */
static dpar_status dpari_pp_pack_leaving(dpari_particles *plan, dpari_pp_migration *move,
                                         dpar_why *why)
{
    unsigned char *to[DPARI_PP_DIRECTIONS];
    int64_t k;
    int32_t p;
    for (k = 0; k < move->leaving; k++) {
        if (plan->owner.at[k] >= 0) {
            plan->out_bytes[plan->owner.at[k]] += move->row;
        }
    }
    for (p = 0; p < plan->neighbours->count; p++) {
        to[p] = (unsigned char *)dpar_neighbours_buffer(plan->neighbours, p, plan->out_bytes[p]);
        if (!to[p]) {
            return dpari_repeat(DPAR_E_MEMORY, why, plan->head.comm->why.text);
        }
    }
    for (k = 0; k < move->leaving; k++) {
        p = plan->owner.at[k];
        if (p >= 0) {
            dpari_pp_pack_row(plan, move, plan->border.at[k], to[p]);
            to[p] += move->row;
        }
    }
    return DPAR_OK;
}

/* ---- particles that go further ---- */

/* Exchanges how many bytes of far particles each rank sends to each, and allocates memory for the
 * rows. Collective. */
static DPARI_COLD dpar_status dpari_pp_count_far(dpari_particles *plan, dpari_pp_migration *move,
                                                 dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t p = comm->size;
    dpar_status status = DPAR_OK;
    int64_t k, *count;
    int32_t r;
    move->far_count = (int64_t *)dpari_object_alloc(comm, 4 * 8 * (int64_t)p);
    if (!move->far_count) {
        status = dpari_say(DPAR_E_MEMORY, why, "%s: no memory for the counts of %d ranks",
                           move->caller, p);
    }
    status = dpari_agree(comm, status, why);
    if (status != DPAR_OK) {
        return status;
    }
    count = move->far_count;
    for (k = 0; k < move->leaving; k++) {
        if (plan->owner.at[k] < 0) {
            count[-1 - plan->owner.at[k]] += move->row;
        }
    }
    status = dpar_all_to_all(comm, count, count + 2 * p, 1, DPAR_I64, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    for (r = 0; r < p; r++) {
        count[p + r] = move->far_sent;
        count[3 * p + r] = move->far_bytes;
        move->far_sent += count[r];
        move->far_bytes += count[2 * p + r];
    }
    move->far_in = (unsigned char *)dpari_object_alloc(comm, move->far_bytes + move->far_sent + 1);
    if (!move->far_in) {
        status = dpari_say(DPAR_E_MEMORY, why, "%s: no memory for %ld bytes of particles",
                           move->caller, move->far_bytes + move->far_sent);
    }
    return dpari_agree(comm, status, why);
}

/* Sends the particles that go further than to a neighbour. Collective. */
static DPARI_COLD dpar_status dpari_pp_send_far(dpari_particles *plan, dpari_pp_migration *move,
                                                dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t p = comm->size;
    dpar_status status = dpari_pp_count_far(plan, move, why);
    unsigned char *out;
    int64_t k, *count = move->far_count;
    if (status != DPAR_OK) {
        return status;
    }
    out = move->far_in + move->far_bytes;
    for (k = 0; k < move->leaving; k++) {
        if (plan->owner.at[k] < 0) {
            int64_t *at = &count[p - 1 - plan->owner.at[k]];
            dpari_pp_pack_row(plan, move, plan->border.at[k], out + *at);
            *at += move->row;
        }
    }
    status =
        dpar_all_to_all_v(comm, out, count, NULL, move->far_in, count + 2 * p, NULL, DPAR_U8, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    return DPAR_OK;
}

/* ---- arriving ---- */

/* Copies a particle over another one. */
static void dpari_pp_replace(const dpari_particles *plan, int32_t fields, int64_t to, int64_t from)
{
    int32_t f;
    for (f = 0; f < fields; f++) {
        const dpari_pp_field *field = &plan->field[f];
        dpari_elements_bits(field->at + to * field->stride, field->at + from * field->stride,
                            (size_t)field->size);
    }
}

/* Writes rows to the places of particles that leave, and when these are used up, after the last
 * particle. *first: number of rows that have been written, which this function increases. */
static void dpari_pp_take_rows(const dpari_particles *plan, const dpari_pp_migration *move,
                               const unsigned char *from, int64_t bytes, int64_t *first)
{
    int64_t k;
    int32_t f;
    for (k = 0; k < bytes; k += move->row) {
        const int64_t j = (*first)++;
        const int64_t i =
            j < move->leaving ? plan->border.at[j] : move->arrays->count + j - move->leaving;
        for (f = 0; f < move->fields; f++) {
            const dpari_pp_field *field = &plan->field[f];
            dpari_elements_bits(field->at + i * field->stride, from, (size_t)field->size);
            from += field->size;
        }
    }
}

/* Moves the last particles to the places that remain free. */
static void dpari_pp_close_gaps(const dpari_particles *plan, const dpari_pp_migration *move)
{
    const int64_t count = move->arrays->count - move->leaving + move->arriving;
    int64_t k, gap = move->leaving - 1, last = move->arrays->count - 1;
    for (k = move->arriving; k < move->leaving && plan->border.at[k] < count; k++) {
        while (gap >= k && plan->border.at[gap] == last) { /* it leaves too */
            gap--;
            last--;
        }
        dpari_pp_replace(plan, move->fields, plan->border.at[k], last);
        last--;
    }
}

/* Stores all particles that have arrived. */
static void dpari_pp_arrive(const dpari_particles *plan, const dpari_pp_migration *move)
{
    const dpar_neighbours *neighbours = plan->neighbours;
    int64_t first = 0;
    int32_t p;
    for (p = 0; p < neighbours->count; p++) {
        dpari_pp_take_rows(plan, move, (const unsigned char *)neighbours->in[p],
                           neighbours->in_bytes[p], &first);
    }
    dpari_pp_take_rows(plan, move, move->far_in, move->far_bytes, &first);
    dpari_pp_close_gaps(plan, move);
}

/* Compares the capacity with the number of particles that this rank will have. */
static dpar_status dpari_pp_check_room(dpari_particles *plan, dpari_pp_migration *move,
                                       dpar_why *why)
{
    const dpar_particles_arrays *arrays = move->arrays;
    int64_t bytes = move->far_bytes, count;
    int32_t p;
    for (p = 0; p < plan->neighbours->count; p++) {
        bytes += plan->neighbours->in_bytes[p];
    }
    move->arriving = bytes / move->row;
    count = arrays->count - move->leaving + move->arriving;
    plan->head.needed = count;
    if (count > arrays->capacity) {
        return dpari_say(DPAR_E_ROOM, why,
                         "%s: %ld particles stay and %ld arrive, but the capacity is %ld; nothing "
                         "was moved",
                         move->caller, arrays->count - move->leaving, move->arriving,
                         arrays->capacity);
    }
    return DPAR_OK;
}

/* Finds and packs the particles that leave. Local. */
static dpar_status dpari_pp_prepare(dpari_particles *plan, dpari_pp_migration *move, dpar_why *why)
{
    dpar_status status =
        dpari_pp_set_arrays(plan, move->caller, move->arrays, &move->position, why);
    int32_t f;
    if (status != DPAR_OK) {
        return status;
    }
    move->fields = move->arrays->field_count;
    for (f = 0; f < move->fields; f++) {
        move->row += plan->field[f].size;
    }
    if (plan->head.dims == 3 && !move->position.single) {
        status = dpari_pp_find(plan, move, 3, 0, why);
    } else {
        status = dpari_pp_find(plan, move, plan->head.dims, move->position.single, why);
    }
    return status == DPAR_OK ? dpari_pp_pack_leaving(plan, move, why) : status;
}

/* Checks that the particles which neighbours have sent fit, sends far particles if any rank has
 * some, and then checks again with these. Makes all ranks fail if one has failed. status: whether
 * this rank has failed before. Costs one all-reduce unless a rank has failed or there are far
 * particles. Collective. */
static dpar_status dpari_pp_complete(dpari_particles *plan, dpari_pp_migration *move,
                                     dpar_status status, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    dpar_status room = DPAR_OK, reduced;
    int64_t any[3]; /* whether a rank has failed, has far particles, has too little room */
    if (status == DPAR_OK) {
        room = dpari_pp_check_room(plan, move, why);
    }
    any[0] = status != DPAR_OK;
    any[1] = status == DPAR_OK && move->distant > 0;
    any[2] = room != DPAR_OK;
    reduced = dpar_all_reduce(comm, any, any, 3, DPAR_I64, DPAR_MAX, NULL);
    if (reduced != DPAR_OK) {
        return dpari_repeat(reduced, why, comm->why.text);
    }
    if (any[0]) {
        return dpari_agree(comm, status, why);
    }
    if (any[1]) {
        status = dpari_pp_send_far(plan, move, why);
        if (status != DPAR_OK) {
            return status;
        }
        room = dpari_pp_check_room(plan, move, why);
        return dpari_agree(comm, room, why);
    }
    return any[2] ? dpari_agree(comm, room, why) : DPAR_OK;
}

DPAR_API dpar_status dpar_particles_migrate(dpar_particles *particles,
                                            dpar_particles_arrays *arrays)
{
    dpari_particles *plan = dpari_pp_of(particles);
    dpari_pp_migration move;
    dpari_nb_kind kind = {0, 0, NULL};
    dpar_why why;
    dpar_status status, sent;
    int32_t p;
    if (!particles) {
        return DPAR_E_ARG;
    }
    status = dpari_nb_is_over(plan->neighbours);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&move, sizeof move);
    dpari_zero(&why, sizeof why);
    move.caller = "dpar_particles_migrate";
    move.arrays = arrays;
    dpari_zero(plan->out_bytes, sizeof plan->out_bytes);
    status = dpari_pp_prepare(plan, &move, &why);
    for (p = 0; p < plan->neighbours->count && status != DPAR_OK; p++) {
        plan->out_bytes[p] = 0;
    }
    kind.hash = dpari_pp_hash(plan, DPARI_PP_MIGRATE, 0);
    sent = dpari_nb_exchange(plan->neighbours, plan->out_bytes, &kind);
    if (sent != DPAR_OK) {
        return sent;
    }
    status = dpari_pp_complete(plan, &move, status, &why);
    if (status == DPAR_OK) {
        dpari_pp_arrive(plan, &move);
        arrays->count += move.arriving - move.leaving;
        particles->ghost_count = 0;
        plan->own = -1;
    }
    dpari_object_release(move.far_count);
    dpari_object_release(move.far_in);
    return status == DPAR_OK ? status : dpari_comm_say(particles->comm, status, "%s", why.text);
}
