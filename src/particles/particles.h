/* SPDX-License-Identifier: MIT-0 */
/* particles - distributes particles over ranks by their positions: sends them to new owners, copies
 * those near a border to the neighbours, and adds what was computed for the copies to the owners.
 *
 * A box is cut into one block for each rank. A rank owns the particles in its block. Its ghosts are
 * copies of particles of other ranks, or periodic images of its own, that are closer to its block
 * than a cutoff in each dim. A step of molecular dynamics is
 *
 *     ... move the particles ...
 *     dpar_particles_migrate(particles, &arrays);          now and then: to the owners,
 *     dpar_particles_ghosts(particles, &arrays);           and new ghosts
 *     ... or, as long as no particle has moved further than half the skin ...
 *     dpar_particles_update(particles, &position, 1);      new positions of the same ghosts
 *     ... forces on own particles and on ghosts ...
 *     dpar_particles_reduce(particles, &force, 1);         adds those on ghosts to the owners
 *
 * Arrays. Particle i is element i of each of your arrays: the own particles come first, then
 * the ghosts. They may be separate arrays of any types, or one array of structs, which is then one
 * field of type DPAR_U8 with sizeof(struct) components. Its members that are updated or summed are
 * described by their address in particle 0 and a stride of sizeof(struct). All of this stays in
 * your memory. If its capacity does not suffice, all ranks get DPAR_E_ROOM, nothing has changed,
 * and particles->needed says how many elements this rank needs. So enlarge the arrays on the ranks
 * that need it, and call again on all ranks.
 *
 * Periodic dims. dpar_particles_migrate moves positions back into the box. Ghosts beyond a periodic
 * end get positions outside of the box, next to the block, so that distances need no special case.
 *
 * Walls. The ends of other dims are walls, with no ghosts behind them. A particle behind a wall
 * belongs to the rank at the wall, and its position is left as it is.
 *
 * Half lists. With desc.half, a rank has ghosts only from the upper half of its neighbours: those
 * whose first different coordinate is higher. Only one of two ranks then sees a pair of particles
 * between them. It adds the opposite force to the ghost, and dpar_particles_reduce sends that to
 * the owner. Without desc.half each rank has all ghosts.
 *
 * Order. Ghosts are sorted by the rank of their owner, then by the direction from its block to this
 * one (dim 0 first), then as their owner has them. Sums are added to an own value in ascending
 * order of the ranks that have its ghosts, then by the direction to them, so that they have the
 * same bits in each run. dpar_particles_migrate changes the order of particles: those that arrive,
 * sorted by rank, fill the places of those that leave, and the last particles fill the places that
 * remain. */
#ifndef DPARI_PARTICLES_PARTICLES_H
#define DPARI_PARTICLES_PARTICLES_H

#include "../comm/comm.h"

enum { DPAR_PARTICLES_MAX_DIMS = 3 };

/* The box, its blocks and the cutoff. Zero it, then set the fields that you need. All ranks must
 * pass the same values. */
typedef struct dpar_particles_desc {
    int32_t dims;                              /* 1..3 */
    double low[DPAR_PARTICLES_MAX_DIMS];       /* where the box begins in each dim */
    double high[DPAR_PARTICLES_MAX_DIMS];      /* where it ends; above low */
    int32_t periodic[DPAR_PARTICLES_MAX_DIMS]; /* 1 makes the dim periodic, 0 puts walls */
    /* Number of ranks along each dim. 0 lets dpar choose it so that blocks have little surface. */
    int32_t parts[DPAR_PARTICLES_MAX_DIMS];
    /* Which rank owns which block. DPAR_ORDER_LAST_FASTEST (0) gives neighbours in the last dim
     * consecutive ranks, as MPI_Cart_create does; DPAR_ORDER_FIRST_FASTEST those in dim 0. */
    int32_t order;
    /* [parts + 1] ascending coordinates for each dim, from low to high: part p owns positions from
     * cuts[p] to below cuts[p + 1]. They are copied. NULL cuts into equal parts. */
    const double *cuts[DPAR_PARTICLES_MAX_DIMS];
    double cutoff; /* of ghosts; 0 if there are none. At most the width of the narrowest block in
                      each dim that is periodic or cut */
    int32_t half;  /* 1 for ghosts from the upper half of the neighbours only */
    int32_t tag;   /* of messages, as for dpar_send */
} dpar_particles_desc;

/* An array with some components for each particle. Zero it, then set the fields that you need. */
typedef struct dpar_particles_field {
    void *data;         /* the components of particle 0; may be NULL if the array has no elements */
    int32_t type;       /* DPAR_F64, ... */
    int32_t components; /* adjacent elements of each particle; 0 selects 1 */
    int64_t stride;     /* bytes from one particle to the next; 0 if there is nothing between */
    int32_t is_position; /* 1 for positions, which dpar_particles_update shifts for ghosts beyond
                            periodic ends; not used elsewhere */
} dpar_particles_field;

/* The particles of this rank. Each rank has its own counts and addresses, which may change from
 * call to call. Types and components must be equal on all ranks. */
typedef struct dpar_particles_arrays {
    int64_t count; /* number of own particles, at most 2^31 - 1; dpar_particles_migrate sets it */
    int64_t capacity; /* elements of each array */
    /* Where the positions are: components of type DPAR_F64 or DPAR_F32, of which the first `dims`
     * count. It must be one of the fields, or within one, as in an array of structs. */
    dpar_particles_field position;
    int32_t field_count;                /* 1 to 64 */
    const dpar_particles_field *fields; /* everything that a particle takes along */
    int32_t ghost_fields; /* the first fields of these, which ghosts get too; 0 selects all. The
                             position must be in one of them */
} dpar_particles_arrays;

/* Distributed particles, made by dpar_particles_make. All fields are read-only. */
typedef struct dpar_particles {
    dpar_comm *comm;
    int32_t dims;
    int32_t parts[DPAR_PARTICLES_MAX_DIMS]; /* number of ranks along each dim */
    int32_t coord[DPAR_PARTICLES_MAX_DIMS]; /* position of this rank among them, from 0 */
    double low[DPAR_PARTICLES_MAX_DIMS];    /* the block of this rank: positions from low ... */
    double high[DPAR_PARTICLES_MAX_DIMS];   /* ... to below high */
    int64_t ghost_count; /* ghosts since the last dpar_particles_ghosts; elements from count on */
    int64_t needed;      /* capacity that this rank needs, after DPAR_E_ROOM */
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
 * A particle may have moved any distance. Those that went no further than to a neighbouring block,
 * also across an edge or a corner, are sent to the neighbours only. If any particle went further,
 * as after reading all of them on rank 0, this call costs an all-to-all in addition. Ghosts are
 * dropped: particles->ghost_count becomes 0.
 *
 * Collective. Fails on all ranks, and then changes nothing, with DPAR_E_ROOM if a capacity does not
 * suffice, and with DPAR_E_ARG if a position is not finite or an argument is wrong. The other ranks
 * quote the message of the rank that has failed. Otherwise fails as the operations of comm.h do.
 * Costs O(count), one exchange with the neighbours, and an all-reduce of 16 bytes. */
DPAR_API dpar_status dpar_particles_migrate(dpar_particles *particles,
                                            dpar_particles_arrays *arrays);
/* Finds the ghosts, copies the first arrays->ghost_fields fields of their owners to the elements
 * from arrays->count on, and sets particles->ghost_count. All own particles should be in their
 * blocks, as they are after dpar_particles_migrate.
 *
 * Collective. Fails on all ranks as dpar_particles_migrate does; there are no ghosts then, and own
 * particles are as they were. Costs O(count), one exchange with the neighbours, and an all-reduce
 * of 24 bytes. */
DPAR_API dpar_status dpar_particles_ghosts(dpar_particles *particles,
                                           const dpar_particles_arrays *arrays);
/* Copies the values of owners to their ghosts in some fields. Set is_position for the positions, so
 * that those of ghosts are shifted beyond periodic ends as before.
 *
 * fields: [n], 1 to 64 of them, with elements for own particles and ghosts.
 *
 * The number of own particles and their order must be those of the last dpar_particles_ghosts.
 *
 * Collective. Fails with DPAR_E_ARG on a rank that passes a wrong argument; the others then wait
 * for it until the deadline. Otherwise fails as the operations of comm.h do. Costs O(ghosts) and
 * one exchange with the neighbours. */
DPAR_API dpar_status dpar_particles_update(dpar_particles *particles,
                                           const dpar_particles_field *fields, int32_t n);
/* Adds the values of ghosts to those of their owners in some fields, such as forces. Ghosts keep
 * their values. A struct of several types is passed as one field for each member that is added.
 *
 * fields: [n], 1 to 64 of them, of types that can be added, aligned to the type.
 *
 * Everything else is as for dpar_particles_update. */
DPAR_API dpar_status dpar_particles_reduce(dpar_particles *particles,
                                           const dpar_particles_field *fields, int32_t n);
/* Destroys the particles' lists; the arrays are yours. NULL does nothing. Collective: a barrier.
 * Fails with the status of a broken communicator, and then releases everything too. */
DPAR_API dpar_status dpar_particles_free(dpar_particles *particles);

#endif
