/* SPDX-License-Identifier: MIT-0 */
/* particles - distributes particles over ranks by their positions. Sends them to the ranks that own
 * their positions, copies those near a border to neighbours, and adds the values computed for the
 * copies to those of the originals.
 *
 * A box is cut into one block for each rank. A rank owns the particles in its block. Its ghosts are
 * copies of particles of other ranks, or periodic images of its own, that are within a cutoff of
 * its block in each dim. A step of molecular dynamics is
 *
 *     ... move the particles ...
 *     dpar_particles_migrate(particles, &arrays);          every few steps: new owners
 *     dpar_particles_ghosts(particles, &arrays);           and new ghosts
 *     ... or, as long as no particle has moved further than half the skin ...
 *     dpar_particles_update(particles, &position, 1);      new positions of the same ghosts
 *     ... compute forces on own particles and on ghosts ...
 *     dpar_particles_reduce(particles, &force, 1);         adds forces on ghosts to the originals
 *
 * Arrays. Particle i is element i of each of your arrays: the own particles come first, then
 * the ghosts. They may be separate arrays of any types, or one array of structs, which is then one
 * field of type DPAR_U8 with sizeof(struct) components. Members of the struct that are updated or
 * summed are described by their address in particle 0 and a stride of sizeof(struct). The arrays
 * are in your memory. If their capacity is too small on a rank, all ranks get DPAR_E_ROOM, own
 * particles are unchanged, and particles->needed is the number of elements that this rank needs.
 * Enlarge the arrays where it exceeds the capacity, and repeat the call on all ranks.
 *
 * Periodic dims. dpar_particles_migrate moves positions back into the box. Ghosts beyond a periodic
 * end get positions outside of the box, next to the block, so that distances to them can be
 * computed as to any other particle.
 *
 * Walls. The ends of dims that are not periodic are walls, with no ghosts behind them. A particle
 * behind a wall belongs to the rank at the wall, and its position is left as it is.
 *
 * Half lists. With desc.half, a rank has ghosts from only one half of the blocks around its own:
 * those that are above it in the first dim in which they are not level with it. (Across a periodic
 * end, the lowest block is above the highest one.) Each pair of an own particle and a ghost is then
 * found by only one of the two ranks. That rank adds the opposite force to the ghost, and
 * dpar_particles_reduce sends it to the owner. Without desc.half each rank has all ghosts.
 *
 * Overlap. dpar_particles_update and dpar_particles_reduce may be split, so that the program
 * computes meanwhile: for instance forces between own particles while ghosts are updated, or while
 * the forces on ghosts, which it has computed before, are added.
 *
 *     dpar_particles_update_begin(particles, &position, 1);
 *     ... forces between own particles ...
 *     dpar_particles_end(particles);
 *     ... forces between own particles and ghosts ...
 *
 * Order. Ghosts are sorted by the rank that owns the original, then by the direction from its block
 * to this one (dim 0 first), then by the index of the original. The values of ghosts are added to
 * an own value in ascending order of the ranks that have the ghosts, then of the directions to
 * them. So sums have the same bits in each run. dpar_particles_migrate changes the order of
 * particles. Those that arrive fill the places of those that leave: first the ones from
 * neighbouring blocks, then those from further away, both sorted by rank. The last particles fill
 * the places that remain. */
#ifndef DPARI_PARTICLES_PARTICLES_H
#define DPARI_PARTICLES_PARTICLES_H

#include "../comm/comm.h"

enum { DPAR_PARTICLES_MAX_DIMS = 3 };

/* The box, its blocks and the cutoff. Zero it, then set the fields that you need. All ranks must
 * pass the same values. */
typedef struct dpar_particles_desc {
    int32_t dims; /* 1..3 */
    /* Where the box begins and ends in each dim; high is above low. If positions are of type
     * DPAR_F32, it must hold both exactly, or rounding may put a particle just outside. */
    double low[DPAR_PARTICLES_MAX_DIMS];
    double high[DPAR_PARTICLES_MAX_DIMS];
    int32_t periodic[DPAR_PARTICLES_MAX_DIMS]; /* 1 makes the dim periodic, 0 puts walls */
    /* Number of ranks along each dim. 0 lets dpar choose it so that blocks have little surface. */
    int32_t parts[DPAR_PARTICLES_MAX_DIMS];
    /* Which rank owns which block. DPAR_ORDER_LAST_FASTEST (0) gives neighbours in the last dim
     * consecutive ranks, as MPI_Cart_create does; DPAR_ORDER_FIRST_FASTEST gives them to those in
     * dim 0. */
    int32_t order;
    /* [parts + 1] ascending coordinates for each dim, from low to high: part p owns positions from
     * cuts[p] to below cuts[p + 1]. They are copied, and need parts to be set. NULL cuts into equal
     * parts. */
    const double *cuts[DPAR_PARTICLES_MAX_DIMS];
    /* How far ghosts may be from the block in each dim, at most the width of the narrowest block in
     * each dim that is periodic or cut, apart from the rounding of that width. With 0, the only
     * ghosts are particles exactly on a face.
     * Distances are rounded as differences of coordinates are, after the ghost has got its position
     * beyond a periodic end. So no pair is missed whose coordinates differ by at most the cutoff in
     * your code, even if rounding decides. */
    double cutoff;
    int32_t half; /* 1 for ghosts from only one half of the blocks around (half lists, above) */
    int32_t tag;  /* of messages, as for dpar_send; your own messages between a begin and its end
                     must have another one */
} dpar_particles_desc;

/* An array with some components for each particle. Zero it, then set the fields that you need. */
typedef struct dpar_particles_field {
    void *data;         /* the components of particle 0; may be NULL if the array has no elements */
    int32_t type;       /* DPAR_F64, ... */
    int32_t components; /* adjacent elements of each particle; 0 selects 1 */
    int64_t stride;     /* bytes from one particle to the next; 0 if they are contiguous */
    int32_t is_position; /* 1 for positions, which dpar_particles_update shifts for ghosts beyond
                            periodic ends; not used elsewhere */
} dpar_particles_field;

/* The particles of this rank. Each rank has its own counts and addresses, which may change from
 * call to call. Types and components must be equal on all ranks. */
typedef struct dpar_particles_arrays {
    int64_t count; /* number of own particles, at most 2^31 - 1; dpar_particles_migrate sets it */
    int64_t capacity; /* number of particles, with ghosts, for which each array has memory */
    /* Where the positions are: components of type DPAR_F64 or DPAR_F32, of which the first `dims`
     * are used. It must be one of the fields, or within one, as in an array of structs. */
    dpar_particles_field position;
    int32_t field_count;                /* 1 to 64 */
    const dpar_particles_field *fields; /* all arrays that move with a particle */
    int32_t ghost_fields; /* number of fields, from the first one on, that ghosts get too; 0 selects
                             all. The position must be in one of them */
} dpar_particles_arrays;

/* Distributed particles, made by dpar_particles_make. All fields are read-only. */
typedef struct dpar_particles {
    dpar_comm *comm;
    int32_t dims;
    int32_t parts[DPAR_PARTICLES_MAX_DIMS]; /* number of ranks along each dim */
    int32_t coord[DPAR_PARTICLES_MAX_DIMS]; /* this rank's place along each dim, from 0 */
    double low[DPAR_PARTICLES_MAX_DIMS];    /* the block of this rank: positions from low ... */
    double high[DPAR_PARTICLES_MAX_DIMS];   /* ... to below high */
    int64_t ghost_count; /* number of ghosts, which are the elements from count on; 0 after
                            dpar_particles_migrate */
    int64_t needed;      /* after DPAR_E_ROOM: the capacity that this rank needs */
} dpar_particles;

/* Cuts the box into one block for each rank of comm.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG, also if the cutoff is wider than a block, and
 * with DPAR_E_DIVIDE or DPAR_E_NONE if parts do not fit the number of ranks. Fails with
 * DPAR_E_MISMATCH if ranks describe different boxes, and with DPAR_E_MEMORY. Costs some small
 * collectives. */
DPAR_API dpar_status dpar_particles_make(dpar_comm *comm, const dpar_particles_desc *desc,
                                         dpar_particles **particles, dpar_why *why);
/* Returns the rank that owns a position of `dims` coordinates, which may be outside of the box, or
 * -1 if one of them is not finite or 2^50 boxes away. Local. Costs O(dims * log(parts)). */
DPAR_API int32_t dpar_particles_owner(const dpar_particles *particles, const double *position);
/* Sends each particle to the rank that owns its position, and sets arrays->count.
 *
 * A particle may have moved any distance. It is sent directly to its new owner if it went no
 * further than to a neighbouring block, also across an edge or a corner. If any particle went
 * further, as after reading all of them on rank 0, this call costs two all-to-alls in addition.
 * Ghosts are dropped: particles->ghost_count becomes 0.
 *
 * Collective. Fails on all ranks, and then changes nothing, with DPAR_E_ROOM if a capacity is too
 * small, and with DPAR_E_ARG if a position is not finite or an argument is wrong. The other ranks
 * quote the message of the rank that has failed. Otherwise fails as the operations of comm.h do.
 * Costs O(count), one exchange with the neighbours, and an all-reduce of 24 bytes. */
DPAR_API dpar_status dpar_particles_migrate(dpar_particles *particles,
                                            dpar_particles_arrays *arrays);
/* Finds the ghosts, stores their first arrays->ghost_fields fields in the elements from
 * arrays->count on, and sets particles->ghost_count. Own particles should be in the block of this
 * rank, as they are after dpar_particles_migrate.
 *
 * Collective. Fails on all ranks as dpar_particles_migrate does; there are no ghosts then, and own
 * particles are unchanged. Costs O(count), one exchange with the neighbours, and an all-reduce
 * of 24 bytes. */
DPAR_API dpar_status dpar_particles_ghosts(dpar_particles *particles,
                                           const dpar_particles_arrays *arrays);
/* Copies new values of own particles to their ghosts on other ranks, in some fields. Set
 * is_position in the field of the positions, so that ghosts beyond periodic ends stay there.
 *
 * fields: [n], 1 to 64 of them, with elements for own particles and ghosts.
 *
 * The number of own particles and their order must be those of the last dpar_particles_ghosts.
 *
 * Collective. Fails with DPAR_E_ARG if there are no ghosts since a migration, or between a begin
 * and its end. If the arguments of a rank are wrong or it has no memory for messages, the
 * communicator breaks, so that all ranks fail with DPAR_E_ARG or DPAR_E_MEMORY. Otherwise fails as
 * the operations of comm.h do. Costs O(ghosts) and one exchange with the neighbours. */
DPAR_API dpar_status dpar_particles_update(dpar_particles *particles,
                                           const dpar_particles_field *fields, int32_t n);
/* Adds the values of ghosts to those of the particles that they copy, in some fields, such as
 * forces. Ghosts keep their values. For an array of structs, pass one field for each member to add.
 *
 * fields: [n], 1 to 64 of them, of types that can be added, aligned to the type.
 *
 * Everything else is as for dpar_particles_update. */
DPAR_API dpar_status dpar_particles_reduce(dpar_particles *particles,
                                           const dpar_particles_field *fields, int32_t n);
/* Starts dpar_particles_update. Ghosts get the values that own particles have at this call. Until
 * dpar_particles_end own values may be read and written, but ghosts' values must be neither.
 *
 * fields: not read after the call returns, but the arrays must stay where they are.
 *
 * Collective. Errors and cost are those of dpar_particles_update. Until dpar_particles_end all
 * other functions for these particles fail with DPAR_E_ARG, except for dpar_particles_owner and
 * dpar_particles_test. */
DPAR_API dpar_status dpar_particles_update_begin(dpar_particles *particles,
                                                 const dpar_particles_field *fields, int32_t n);
/* Starts dpar_particles_reduce. Until dpar_particles_end own values may be read and written, and
 * ghosts' values may be read but not written. The values of ghosts are added at
 * dpar_particles_end. Everything else is as for dpar_particles_update_begin. */
DPAR_API dpar_status dpar_particles_reduce_begin(dpar_particles *particles,
                                                 const dpar_particles_field *fields, int32_t n);
/* Advances an update or a sum as far as possible without waiting. Returns DPAR_OK if everything has
 * arrived (dpar_particles_end must still be called), otherwise DPAR_MORE. Local. Errors are those
 * of dpar_particles_update except for DPAR_E_TIMEOUT. */
DPAR_API dpar_status dpar_particles_test(dpar_particles *particles);
/* Waits until an update or a sum is complete. Returns DPAR_OK if none has begun. Collective. Errors
 * are those of dpar_particles_update. */
DPAR_API dpar_status dpar_particles_end(dpar_particles *particles);
/* Destroys the lists of particles, but not your arrays. NULL does nothing. Collective: a barrier.
 * Fails with DPAR_E_ARG between a begin and its end, and then destroys nothing. Fails with the
 * status of a broken communicator, and then releases everything too. */
DPAR_API dpar_status dpar_particles_free(dpar_particles *particles);

#endif
