/* SPDX-License-Identifier: MIT-0 */
/* Finds ghosts, updates them, and adds their values to those of the particles that they copy.
 *
 * For each direction in which there is a neighbour, a rank lists the own particles that are near
 * the faces on that side. It sends them directly to the rank in that direction. Several directions
 * may lead to the same rank, or back to this one. The receiver sees the sender in the opposite
 * direction. The lists for one neighbour are adjacent, so that each call packs one message for it,
 * with one block of values per field. Ghosts of this rank's own particles need no message. */
#include "particles.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../host/kernel.h"
#include "neighbours_private.h"
#include "particles_plan.h"

/* ---- blocks of values ------------------------------------------------------------------------ */

/* Returns the bytes of a field's block in a message, rounded up to a multiple of 8. */
static int64_t dpari_pp_block(const dpari_pp_field *field, int64_t count)
{
    return (field->size * count + 7) / 8 * 8;
}

/* Returns the bytes of the blocks of the first `fields` fields. */
static int64_t dpari_pp_blocks(const dpari_particles *plan, int32_t fields, int64_t count)
{
    int64_t bytes = 0;
    int32_t f;
    for (f = 0; f < fields; f++) {
        bytes += dpari_pp_block(&plan->field[f], count);
    }
    return bytes;
}

DPARI_ALWAYS_INLINE void dpari_pp_gather_size(unsigned char *to, int64_t step,
                                              const dpari_pp_field *field, const int32_t *index,
                                              int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + k * step, field->at + index[k] * field->stride, size);
    }
}

/* Copies the values of listed particles to addresses `step` bytes apart. */
static void dpari_pp_gather(unsigned char *to, int64_t step, const dpari_pp_field *field,
                            const int32_t *index, int64_t n)
{
    switch (field->size) { /* sizes for which the compiler makes a better loop */
    case 4: dpari_pp_gather_size(to, step, field, index, n, 4); break;
    case 8: dpari_pp_gather_size(to, step, field, index, n, 8); break;
    case 24: dpari_pp_gather_size(to, step, field, index, n, 24); break;
    default: dpari_pp_gather_size(to, step, field, index, n, (size_t)field->size);
    }
}

/* Copies n rows of `size` bytes. step, stride: bytes between rows in `to` and in `from`. */
static void dpari_pp_rows(unsigned char *to, int64_t step, const unsigned char *from,
                          int64_t stride, int64_t n, int64_t size)
{
    int64_t k;
    if (step == size && stride == size) {
        dpari_elements_bits(to, from, (size_t)(n * size));
        return;
    }
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + k * step, from + k * stride, (size_t)size);
    }
}

/* Adds n rows, `step` bytes apart, to the values of listed particles. */
static void dpari_pp_add(const dpari_pp_field *field, const int32_t *index, int64_t n,
                         const unsigned char *from, int64_t step)
{
    int64_t k;
    int32_t i;
    for (k = 0; k < n; k++) {
        unsigned char *to = field->at + index[k] * field->stride;
        const unsigned char *of = from + k * step;
        void *out[1];
        const void *in[2];
        if (field->type == DPAR_F64) {
            for (i = 0; i < field->numbers; i++) {
                double a, b;
                dpari_elements_bits(&a, to + 8 * i, 8);
                dpari_elements_bits(&b, of + 8 * i, 8);
                a += b;
                dpari_elements_bits(to + 8 * i, &a, 8);
            }
            continue;
        }
        in[0] = out[0] = to;
        in[1] = of;
        dpari_kern_reduce(out, 1, in, 2, field->numbers, field->type, DPAR_SUM, 0);
    }
}

/* Returns the address of the first ghost from neighbour p in a field. */
static unsigned char *dpari_pp_ghosts_of(const dpari_particles *plan, const dpari_pp_field *field,
                                         int32_t p)
{
    return field->at + (plan->own + plan->peer_ghost[p]) * field->stride;
}

/* Returns the list of the own particles that neighbour p has as ghosts. */
static const int32_t *dpari_pp_sent_to(const dpari_particles *plan, int32_t p)
{
    return plan->sent.at + plan->peer_first[p];
}

static int dpari_pp_is_self(const dpari_particles *plan, int32_t p)
{
    return plan->neighbours->rank[p] == plan->head.comm->rank;
}

/* ---- finding ghosts -------------------------------------------------------------------------- */

/* Returns the faces that particle i is near: bit 2 d for the low face in dim d, bit 2 d + 1 for the
 * high one. If a coordinate is NaN, the result is at least DPARI_PP_MASKS.
 *
 * The distance is that from the ghost to the face of the block that gets it, computed and rounded
 * as a caller computes the distance from the ghost to a particle behind that face. Rounding keeps
 * the order of numbers, so it cannot lose a pair within the cutoff. */
DPARI_ALWAYS_INLINE int32_t dpari_pp_faces(const dpari_particles *plan,
                                           const dpari_pp_position *position, int64_t i,
                                           int32_t dims)
{
    int32_t mask = 0, d;
    for (d = 0; d < dims; d++) {
        const double x = dpari_pp_get(position, i, d);
        const double below = x + plan->face_shift[d][0], above = x + plan->face_shift[d][1];
        if (position->single) {
            const float low = (float)((double)(float)below - plan->face[d][0]);
            const float high = (float)(plan->face[d][1] - (double)(float)above);
            mask |= (int32_t)(low <= (float)plan->cutoff) << 2 * d;
            mask |= (int32_t)(high <= (float)plan->cutoff) << (2 * d + 1);
        } else {
            mask |= (int32_t)(below - plan->face[d][0] <= plan->cutoff) << 2 * d;
            mask |= (int32_t)(plan->face[d][1] - above <= plan->cutoff) << (2 * d + 1);
        }
        mask |= (int32_t)(x != x) << 2 * DPAR_PARTICLES_MAX_DIMS;
    }
    return mask;
}

static dpar_status dpari_pp_not_a_number(int64_t i, dpar_why *why)
{
    return dpari_wrong(why, "dpar_particles_ghosts: a coordinate of particle %ld is NaN", i);
}

/* Lists the particles near faces in plan->border, sets *found to their number, and counts how many
 * are sent in each direction. */
DPARI_ALWAYS_INLINE dpar_status dpari_pp_find_border(dpari_particles *plan,
                                                     const dpari_pp_position *from, int32_t dims,
                                                     int32_t single, int64_t *found, dpar_why *why)
{
    dpari_pp_position position = *from;
    int64_t i, n = 0;
    position.single = single;
    for (i = 0; i < plan->own; i++) {
        const int32_t mask = dpari_pp_faces(plan, &position, i, dims);
        int32_t k;
        if (mask == 0) {
            continue;
        }
        if (mask >= DPARI_PP_MASKS) {
            return dpari_pp_not_a_number(i, why);
        }
        if (n == plan->border.room) {
            const dpar_status status = dpari_pp_grow(plan, &plan->border, n + 1, n, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
        plan->border.at[n++] = (int32_t)i;
        for (k = 0; k < plan->targets[mask]; k++) {
            plan->send_count[plan->target[mask][k]]++;
        }
    }
    *found = n;
    return DPAR_OK;
}

/* Fills the lists of all directions. */
static dpar_status dpari_pp_fill_lists(dpari_particles *plan, const dpari_pp_position *position,
                                       int64_t found, dpar_why *why)
{
    int64_t next[DPARI_PP_DIRECTIONS], all = 0, n;
    dpar_status status;
    int32_t p, c, k;
    for (p = 0; p < plan->neighbours->count; p++) {
        plan->peer_first[p] = all;
        for (c = 0; c < plan->directions; c++) {
            if (plan->direction[c].peer == p) {
                plan->send_first[c] = next[c] = all;
                all += plan->send_count[c];
            }
        }
        plan->peer_sends[p] = all - plan->peer_first[p];
    }
    status = dpari_pp_grow(plan, &plan->sent, all, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (n = 0; n < found; n++) {
        const int32_t i = plan->border.at[n];
        const int32_t mask = dpari_pp_faces(plan, position, i, plan->head.dims);
        for (k = 0; k < plan->targets[mask]; k++) {
            plan->sent.at[next[plan->target[mask][k]]++] = i;
        }
    }
    return DPAR_OK;
}

/* Forgets the ghosts. own: number of own particles, or -1 if ghosts must be found again. */
static void dpari_pp_clear(dpari_particles *plan, int64_t own)
{
    plan->own = own;
    plan->head.ghost_count = 0;
    dpari_zero(plan->send_count, sizeof plan->send_count);
    dpari_zero(plan->peer_sends, sizeof plan->peer_sends);
    dpari_zero(plan->peer_ghosts, sizeof plan->peer_ghosts);
    dpari_zero(plan->ghosts_from, sizeof plan->ghosts_from);
    dpari_zero(plan->out_bytes, sizeof plan->out_bytes);
}

/* Lists the particles that are sent, and packs a message for each neighbour: their number in each
 * direction, then a block of values per field. Local. */
static dpar_status dpari_pp_pack_ghosts(dpari_particles *plan, const dpar_particles_arrays *arrays,
                                        dpari_pp_position *position, int32_t *fields, dpar_why *why)
{
    dpar_status status = dpari_pp_set_arrays(plan, "dpar_particles_ghosts", arrays, position, why);
    int64_t found = 0;
    int32_t p, c, f;
    if (status != DPAR_OK) {
        return status;
    }
    *fields = arrays->ghost_fields > 0 ? arrays->ghost_fields : arrays->field_count;
    dpari_pp_clear(plan, arrays->count);
    if (plan->head.dims == 3 && !position->single) {
        status = dpari_pp_find_border(plan, position, 3, 0, &found, why);
    } else {
        status =
            dpari_pp_find_border(plan, position, plan->head.dims, position->single, &found, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pp_fill_lists(plan, position, found, why);
    }
    for (p = 0; p < plan->neighbours->count && status == DPAR_OK; p++) {
        const int64_t n = plan->peer_sends[p];
        const int64_t bytes = 8 * (int64_t)plan->directions +
                              (dpari_pp_is_self(plan, p) ? 0 : dpari_pp_blocks(plan, *fields, n));
        unsigned char *to = (unsigned char *)dpar_neighbours_buffer(plan->neighbours, p, bytes);
        if (!to) {
            return dpari_repeat(DPAR_E_MEMORY, why, plan->head.comm->why.text);
        }
        for (c = 0; c < plan->directions; c++, to += 8) {
            const int64_t count = plan->direction[c].peer == p ? plan->send_count[c] : 0;
            dpari_elements_bits(to, &count, 8);
        }
        for (f = 0; f < *fields && !dpari_pp_is_self(plan, p); f++) {
            const dpari_pp_field *field = &plan->field[f];
            dpari_pp_gather(to, field->size, field, dpari_pp_sent_to(plan, p), n);
            to += dpari_pp_block(field, n);
        }
        plan->out_bytes[p] = bytes;
    }
    return status;
}

/* Reads how many ghosts each neighbour has sent, and compares their number with the capacity. */
static dpar_status dpari_pp_count_ghosts(dpari_particles *plan, const dpar_particles_arrays *arrays,
                                         int32_t fields, dpar_why *why)
{
    int64_t all = 0;
    int32_t p, c;
    for (p = 0; p < plan->neighbours->count; p++) {
        const unsigned char *in = (const unsigned char *)plan->neighbours->in[p];
        int64_t bytes = plan->neighbours->in_bytes[p];
        plan->peer_ghost[p] = all;
        for (c = 0; c < plan->directions && bytes > 0; c++) { /* 0: the neighbour has failed */
            const int32_t from = plan->directions - 1 - c;
            int64_t count;
            dpari_elements_bits(&count, in + INT64_C(8) * c, 8);
            if (plan->direction[from].peer == p) {
                plan->ghosts_from[from] = count;
                all += count;
            }
        }
        plan->peer_ghosts[p] = all - plan->peer_ghost[p];
        bytes -= 8 * (int64_t)plan->directions;
        if (bytes >= 0 && !dpari_pp_is_self(plan, p) &&
            bytes != dpari_pp_blocks(plan, fields, plan->peer_ghosts[p])) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "dpar_particles_ghosts: rank %d sends %ld particles in %ld bytes, but "
                             "%ld are expected; types and components must be equal on all ranks",
                             plan->neighbours->rank[p], plan->peer_ghosts[p], bytes,
                             dpari_pp_blocks(plan, fields, plan->peer_ghosts[p]));
        }
    }
    plan->head.needed = arrays->count + all;
    plan->head.ghost_count = all;
    if (plan->head.needed > arrays->capacity) {
        return dpari_say(DPAR_E_ROOM, why,
                         "dpar_particles_ghosts: %ld own particles have %ld ghosts, but the "
                         "capacity is %ld",
                         arrays->count, all, arrays->capacity);
    }
    return DPAR_OK;
}

/* ---- copying to ghosts ----------------------------------------------------------------------- */

/* Shifts the positions of the ghosts from neighbour p. at: the position of the first one. */
static void dpari_pp_shift(const dpari_particles *plan, int32_t p, unsigned char *at,
                           int64_t stride, int32_t single)
{
    dpari_pp_position position;
    int64_t i, end, first = 0;
    int32_t c, d;
    position.at = at;
    position.stride = stride;
    position.single = single;
    for (c = plan->directions - 1; c >= 0; c--) { /* the sender's directions are opposite */
        const dpari_pp_direction *direction = &plan->direction[c];
        if (direction->peer != p) {
            continue;
        }
        end = first + plan->ghosts_from[c];
        for (d = 0; d < plan->head.dims; d++) {
            const double shift = direction->shift[d];
            for (i = first; i < end && (shift < 0.0 || shift > 0.0); i++) {
                dpari_pp_put(single, at + i * stride, d, dpari_pp_get(&position, i, d) + shift);
            }
        }
        first = end;
    }
}

/* Stores a block of values that neighbour p has sent, and returns its end. If p is this rank,
 * copies the values instead, and returns `in`. */
static const unsigned char *dpari_pp_store(const dpari_particles *plan, const dpari_pp_field *field,
                                           int32_t p, const unsigned char *in)
{
    const int64_t n = plan->peer_ghosts[p];
    unsigned char *to = dpari_pp_ghosts_of(plan, field, p);
    if (dpari_pp_is_self(plan, p)) { /* its ghosts have the order of its list */
        dpari_pp_gather(to, field->stride, field, dpari_pp_sent_to(plan, p), n);
        return in;
    }
    dpari_pp_rows(to, field->stride, in, field->size, n, field->size);
    return in + dpari_pp_block(field, n);
}

DPAR_API dpar_status dpar_particles_ghosts(dpar_particles *particles,
                                           const dpar_particles_arrays *arrays)
{
    dpari_particles *plan = dpari_pp_of(particles);
    dpari_pp_position position;
    dpari_nb_kind kind = {0, 1, NULL};
    dpar_why why;
    dpar_status status, sent;
    int32_t fields = 0, p, f;
    if (!particles) {
        return DPAR_E_ARG;
    }
    status = dpari_nb_is_over(plan->neighbours);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&why, sizeof why);
    dpari_zero(&position, sizeof position);
    status = dpari_pp_pack_ghosts(plan, arrays, &position, &fields, &why);
    if (status != DPAR_OK) {
        dpari_pp_clear(plan, 0);
    }
    kind.hash = dpari_pp_hash(plan, DPARI_PP_GHOSTS, 0);
    sent = dpari_nb_exchange(plan->neighbours, plan->out_bytes, &kind);
    if (sent != DPAR_OK) {
        return sent;
    }
    if (status == DPAR_OK) {
        status = dpari_pp_count_ghosts(plan, arrays, fields, &why);
    }
    status = dpari_agree(particles->comm, status, &why);
    if (status != DPAR_OK) {
        dpari_pp_clear(plan, -1);
        return dpari_comm_say(particles->comm, status, "%s", why.text);
    }
    for (p = 0; p < plan->neighbours->count; p++) {
        const unsigned char *in =
            (const unsigned char *)plan->neighbours->in[p] + 8 * (int64_t)plan->directions;
        for (f = 0; f < fields; f++) {
            const dpari_pp_field *field = &plan->field[f];
            in = dpari_pp_store(plan, field, p, in);
            if (f == position.field) {
                dpari_pp_shift(plan, p, dpari_pp_ghosts_of(plan, field, p) + position.offset,
                               field->stride, position.single);
            }
        }
    }
    return DPAR_OK;
}

/* ---- updates and sums ------------------------------------------------------------------------ */

/* Checks the fields of an update or a sum, and converts them to plan->field. */
static dpar_status dpari_pp_check_call(dpari_particles *plan, const char *caller, int32_t kind,
                                       const dpar_particles_field *fields, int32_t n, dpar_why *why)
{
    const int64_t all = plan->own + plan->head.ghost_count;
    dpar_status status = dpari_pp_set_fields(plan, caller, fields, n, why);
    int32_t f;
    for (f = 0; f < n && status == DPAR_OK; f++) {
        const dpari_pp_field *field = &plan->field[f];
        if (kind == DPARI_PP_REDUCE && !dpari_type_can_reduce(field->type)) {
            return dpari_wrong(why, "%s: field %d of type %s cannot be added", caller, f,
                               dpar_type_name(field->type));
        }
        if (!field->at && all > 0) {
            return dpari_wrong(why, "%s: field %d is NULL, but there are %ld particles", caller, f,
                               all);
        }
        if (field->is_position && ((field->type != DPAR_F64 && field->type != DPAR_F32) ||
                                   field->numbers < plan->head.dims)) {
            return dpari_wrong(why,
                               "%s: field %d, the positions, has %d components of type %s, but %d "
                               "of f64 or f32 are needed",
                               caller, f, field->numbers, dpar_type_name(field->type),
                               plan->head.dims);
        }
    }
    return status;
}

/* Stores the values of all fields that neighbour p has sent, or those of this rank's own particles
 * if p is this rank. */
static void dpari_pp_store_all(const dpari_particles *plan, int32_t p, const unsigned char *in)
{
    int32_t f;
    for (f = 0; f < plan->fields; f++) {
        const dpari_pp_field *field = &plan->field[f];
        in = dpari_pp_store(plan, field, p, in);
        if (field->is_position) {
            dpari_pp_shift(plan, p, dpari_pp_ghosts_of(plan, field, p), field->stride,
                           field->type == DPAR_F32);
        }
    }
}

/* Adds the values that neighbour p has sent, or those of the ghosts of this rank's own particles if
 * p is this rank. */
static void dpari_pp_add_all(const dpari_particles *plan, int32_t p, const unsigned char *in)
{
    const int64_t count = plan->peer_sends[p];
    int32_t f;
    for (f = 0; f < plan->fields; f++) {
        const dpari_pp_field *field = &plan->field[f];
        if (dpari_pp_is_self(plan, p)) {
            dpari_pp_add(field, dpari_pp_sent_to(plan, p), count,
                         dpari_pp_ghosts_of(plan, field, p), field->stride);
            continue;
        }
        dpari_pp_add(field, dpari_pp_sent_to(plan, p), count, in, field->size);
        in += dpari_pp_block(field, count);
    }
}

/* Packs the values for neighbour p. Without memory, breaks the communicator, because the others
 * already wait for these values, and returns its status. */
static dpar_status dpari_pp_pack_values(dpari_particles *plan, const char *caller, int32_t kind,
                                        int32_t p)
{
    const int reduces = kind == DPARI_PP_REDUCE;
    const int64_t count = reduces ? plan->peer_ghosts[p] : plan->peer_sends[p];
    unsigned char *to;
    int32_t f;
    plan->out_bytes[p] = dpari_pp_blocks(plan, plan->fields, count);
    plan->in_bytes[p] =
        dpari_pp_blocks(plan, plan->fields, reduces ? plan->peer_sends[p] : plan->peer_ghosts[p]);
    to = (unsigned char *)dpar_neighbours_buffer(plan->neighbours, p, plan->out_bytes[p]);
    if (!to) {
        return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MEMORY,
                                    "%s: no memory for %ld bytes to rank %d", caller,
                                    plan->out_bytes[p], plan->neighbours->rank[p]);
    }
    for (f = 0; f < plan->fields; f++) {
        const dpari_pp_field *field = &plan->field[f];
        if (reduces) {
            dpari_pp_rows(to, field->size, dpari_pp_ghosts_of(plan, field, p), field->stride, count,
                          field->size);
        } else {
            dpari_pp_gather(to, field->size, field, dpari_pp_sent_to(plan, p), count);
        }
        to += dpari_pp_block(field, count);
    }
    return DPAR_OK;
}

/* Begins an update or a sum. Ghosts of this rank's own particles are updated at once. */
static dpar_status dpari_pp_begin(dpari_particles *plan, const char *caller, int32_t kind,
                                  const dpar_particles_field *fields, int32_t n)
{
    dpar_comm *comm = plan->head.comm;
    dpari_nb_kind exchange = {0, 0, NULL};
    dpar_status status = dpari_nb_is_over(plan->neighbours);
    dpar_why why;
    int32_t p;
    if (status != DPAR_OK) {
        return status;
    }
    if (plan->own < 0) {
        return dpari_comm_wrong(comm,
                                "%s: there are no ghosts after a migration or a failed call; call "
                                "dpar_particles_ghosts first",
                                caller);
    }
    dpari_zero(&why, sizeof why);
    status = dpari_pp_check_call(plan, caller, kind, fields, n, &why);
    if (status != DPAR_OK) { /* the others may already wait for the values of this rank */
        dpar_why text;
        (void)dpari_say(status, &text, "%s (rank %d)", why.text, comm->rank);
        return dpari_nb_break(plan->neighbours, status, text.text);
    }
    plan->fields = n;
    for (p = 0; p < plan->neighbours->count && status == DPAR_OK; p++) {
        if (!dpari_pp_is_self(plan, p)) {
            status = dpari_pp_pack_values(plan, caller, kind, p);
            continue;
        }
        plan->out_bytes[p] = plan->in_bytes[p] = 0;
        if (kind == DPARI_PP_UPDATE) {
            dpari_pp_store_all(plan, p, NULL);
        }
    }
    if (status != DPAR_OK) {
        return dpari_nb_break(plan->neighbours, status, comm->why.text);
    }
    exchange.hash = dpari_pp_hash(plan, kind, n);
    exchange.in_bytes = plan->in_bytes;
    status = dpari_nb_begin(plan->neighbours, plan->out_bytes, &exchange);
    plan->begun = status == DPAR_OK ? kind : 0;
    return status;
}

DPAR_API dpar_status dpar_particles_update_begin(dpar_particles *particles,
                                                 const dpar_particles_field *fields, int32_t n)
{
    return particles ? dpari_pp_begin(dpari_pp_of(particles), "dpar_particles_update",
                                      DPARI_PP_UPDATE, fields, n)
                     : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_particles_reduce_begin(dpar_particles *particles,
                                                 const dpar_particles_field *fields, int32_t n)
{
    return particles ? dpari_pp_begin(dpari_pp_of(particles), "dpar_particles_reduce",
                                      DPARI_PP_REDUCE, fields, n)
                     : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_particles_test(dpar_particles *particles)
{
    return particles ? dpari_nb_advance(dpari_pp_of(particles)->neighbours, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_particles_end(dpar_particles *particles)
{
    dpari_particles *plan = dpari_pp_of(particles);
    const dpar_neighbours *neighbours;
    dpar_status status;
    int32_t kind, p;
    if (!particles) {
        return DPAR_E_ARG;
    }
    neighbours = plan->neighbours;
    status = dpari_nb_advance(plan->neighbours, 1);
    kind = plan->begun;
    plan->begun = 0;
    for (p = 0; p < neighbours->count && status == DPAR_OK; p++) {
        const unsigned char *in = (const unsigned char *)neighbours->in[p];
        if (kind == DPARI_PP_REDUCE) {
            dpari_pp_add_all(plan, p, in);
        } else if (kind == DPARI_PP_UPDATE && !dpari_pp_is_self(plan, p)) {
            dpari_pp_store_all(plan, p, in);
        }
    }
    return status;
}

DPAR_API dpar_status dpar_particles_update(dpar_particles *particles,
                                           const dpar_particles_field *fields, int32_t n)
{
    const dpar_status status = dpar_particles_update_begin(particles, fields, n);
    return status == DPAR_OK ? dpar_particles_end(particles) : status;
}

DPAR_API dpar_status dpar_particles_reduce(dpar_particles *particles,
                                           const dpar_particles_field *fields, int32_t n)
{
    const dpar_status status = dpar_particles_reduce_begin(particles, fields, n);
    return status == DPAR_OK ? dpar_particles_end(particles) : status;
}
