/* SPDX-License-Identifier: MIT-0 */
/* dpar_particles.h - distributes particles over ranks by their positions: migration, ghosts, sums of forces.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * It is for codes of molecular dynamics, smoothed particle hydrodynamics and particles in cells. A box is cut into one
 * block for each rank. Each rank has the particles in its block, and ghosts, which are copies of the particles around
 * it. In this program each rank makes particles anywhere in a periodic square, sends them to the ranks that own their
 * positions, and counts the neighbours of its own particles:
 *
 *     #include "dpar_particles.h"
 *     #include <stdio.h>
 *     enum { CAPACITY = 4000 };
 *     static double x[CAPACITY][2];
 *     static int neighbours(dpar_comm *world, void *unused)
 *     {
 *         dpar_particles_desc desc = {0};
 *         dpar_particles_arrays arrays = {0};
 *         dpar_particles_field field = {0};
 *         dpar_particles *particles = NULL;
 *         dpar_why why;
 *         long pairs = 0;
 *         (void)unused;
 *         desc.dims = 2;
 *         desc.high[0] = desc.high[1] = 10.0;
 *         desc.periodic[0] = desc.periodic[1] = 1;
 *         desc.cutoff = 1.0;
 *         if (dpar_particles_make(world, &desc, &particles, &why) < 0) {
 *             return dpar_fail(world, &why);
 *         }
 *         for (arrays.count = 0; arrays.count < 100; arrays.count++) {
 *             x[arrays.count][0] = 3.7 * (double)(arrays.count + 100 * world->rank);
 *             x[arrays.count][1] = 1.3 * (double)arrays.count;      dpar moves them back into the box
 *         }
 *         field.data = x;
 *         field.type = DPAR_F64;
 *         field.components = 2;
 *         arrays.capacity = CAPACITY;
 *         arrays.position = field;
 *         arrays.fields = &field;                          all arrays that move with a particle
 *         arrays.field_count = 1;
 *         if (dpar_particles_migrate(particles, &arrays) < 0 || dpar_particles_ghosts(particles, &arrays) < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         for (int64_t i = 0; i < arrays.count; i++) {
 *             for (int64_t j = 0; j < arrays.count + particles->ghost_count; j++) {
 *                 const double dx = x[i][0] - x[j][0], dy = x[i][1] - x[j][1];
 *                 pairs += i != j && dx * dx + dy * dy <= 1.0;
 *             }
 *         }
 *         printf("rank %d: %ld particles have %ld neighbours\n", world->rank, (long)arrays.count, pairs);
 *         return dpar_particles_free(particles) < 0 ? dpar_fail(world, NULL) : 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, neighbours, NULL);   --ranks 4, or under mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours --ranks 4
 *
 * Other functions that you may need:
 *
 *     dpar_particles_update(particles, &field, 1)      copies new values of the same particles to their ghosts
 *     dpar_particles_reduce(particles, &force, 1)      adds the forces on ghosts to those on the originals
 *     dpar_particles_owner(particles, x)               finds the rank that owns a position
 *     dpar_neighbours_exchange(neighbours, out, out_bytes)    sends messages whose lengths only the sender knows
 */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_particles.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_particles.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_PARTICLES_H
#define DPAR_PARTICLES_H

/* ==== particles/particles.h ==== */

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

/* ==== particles/neighbours.h ==== */

/* neighbours - exchanges messages with neighbour ranks if only the sender of each one knows its
 * length. One call sends lengths and data, and only neighbours take part.
 *
 *     desc.count = 2;
 *     desc.rank = left_and_right;
 *     dpar_neighbours_make(comm, &desc, &neighbours, &why);
 *     ...
 *     out[0] = for_left;                             any number of bytes, in memory of your own
 *     out_bytes[0] = ...;
 *     dpar_neighbours_exchange(neighbours, out, out_bytes);
 *     ... read neighbours->in_bytes[k] bytes at neighbours->in[k] ...
 *
 * There is no capacity to choose, because received bytes stay in memory of the library, where you
 * can read them until the next exchange. Neighbours that share memory read the packed bytes in
 * place, so that nothing is copied if the sender packs into dpar_neighbours_buffer. Each other
 * neighbour gets one message. Both ranks know how long it is, because its length depends only on
 * the number of bytes sent in the exchange before: it has space for an eighth and 448 bytes more. A
 * second message follows if that is not enough. */

/* Who the neighbours are. Zero it, then set the fields that you need. */
typedef struct dpar_neighbours_desc {
    int32_t count; /* number of neighbours, 0 to 4096; ranks may have different numbers */
    /* Different ranks of the communicator, in any order; they may include this rank. If a rank
     * lists another one, that one must list it too. */
    const int32_t *rank;
    int32_t tag; /* of the messages, as for dpar_send; equal on all ranks */
} dpar_neighbours_desc;

/* A neighbour exchange, made by dpar_neighbours_make. All fields are read-only. */
typedef struct dpar_neighbours {
    dpar_comm *comm;
    int32_t count;
    const int32_t *rank;   /* [count] the neighbours, in the order of the description */
    const void *const *in; /* [count] where the bytes from each neighbour are, at multiples of 64 */
    const int64_t *in_bytes; /* [count] how many each neighbour has sent */
} dpar_neighbours;

/* Prepares exchanges with some ranks.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG if a listed rank is not in comm, is listed twice,
 * or does not list the rank that lists it, or if comm has a device's memory. Fails with
 * DPAR_E_MISMATCH if tags differ, and with DPAR_E_MEMORY. Costs an all-to-all of 4 bytes for each
 * rank of comm. */
DPAR_API dpar_status dpar_neighbours_make(dpar_comm *comm, const dpar_neighbours_desc *desc,
                                          dpar_neighbours **neighbours, dpar_why *why);
/* Returns memory in which you can pack at least `bytes` bytes for neighbour k, so that the next
 * exchange need not copy them. The address is a multiple of 64. Each call may move the memory and
 * lose its contents, so call this function before you pack. Two pieces of memory are used in turn,
 * so call it again for the next exchange. Returns NULL, with a message in comm->why, if there is no
 * such neighbour or no memory. Local. Costs O(1), and O(bytes) if the memory must grow. */
DPAR_API void *dpar_neighbours_buffer(dpar_neighbours *neighbours, int32_t k, int64_t bytes);
/* Sends out_bytes[k] bytes to each neighbour k, and waits for the bytes that it sends.
 *
 * out:       [count] where the bytes are. If out or out[k] is NULL, they are in the memory of
 *            dpar_neighbours_buffer.
 * out_bytes: [count] each from 0 to 2^40.
 *
 * The bytes from neighbour k stay at in[k] until the next call of dpar_neighbours_exchange. Do not
 * write there.
 *
 * Collective. If the arguments of a rank are wrong or it has no memory, the communicator breaks, so
 * that all ranks fail with DPAR_E_ARG or DPAR_E_MEMORY. Otherwise fails as the operations of comm.h
 * do. Costs one copy of the bytes that are not packed in place, and one or two messages to
 * each neighbour on another node. */
DPAR_API dpar_status dpar_neighbours_exchange(dpar_neighbours *neighbours, const void *const *out,
                                              const int64_t *out_bytes);
/* Destroys a neighbour exchange and its memory. NULL does nothing. Collective: a barrier. Fails
 * with the status of a broken communicator, and then releases everything too. */
DPAR_API dpar_status dpar_neighbours_free(dpar_neighbours *neighbours);

#endif /* DPAR_PARTICLES_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_PARTICLES_IMPLEMENTATION)) && \
    !defined(DPAR_PARTICLES_IMPLEMENTATION_DONE)
#define DPAR_PARTICLES_IMPLEMENTATION_DONE

/* ==== particles/neighbours_private.h ==== */

/* neighbours_private - the neighbour exchanges of particles: ranks compare their kind, and the
 * receiver may know the lengths. Private. */

/* The length of a message follows from the last one on the same channel. Migrations and ghosts use
 * different channels, because their numbers of bytes differ. Exchanges whose lengths the receiver
 * knows use no channel. */
enum { DPARI_NB_CHANNELS = 2 };

/* Describes an exchange. */
typedef struct dpari_nb_kind {
    uint64_t hash;           /* compared with that of the peers that share memory */
    int32_t channel;         /* 0 .. DPARI_NB_CHANNELS - 1; not used if in_bytes is not NULL */
    const int64_t *in_bytes; /* [count] how many bytes each neighbour sends, if this rank knows */
} dpari_nb_kind;

/* Checks that no exchange is in progress, so that memory may be packed for the next one. */
DPARI_INTERNAL dpar_status dpari_nb_is_over(const dpar_neighbours *neighbours);
/* Breaks the communicator and that of the node, in which neighbours may wait, with the status and
 * the message of this rank. Returns the status that counts. */
DPARI_INTERNAL dpar_status dpari_nb_break(dpar_neighbours *neighbours, dpar_status status,
                                          const char *text);
/* Begins to send what has been packed in the memory of dpar_neighbours_buffer. Collective. */
DPARI_INTERNAL dpar_status dpari_nb_begin(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                          const dpari_nb_kind *kind);
/* Advances the exchange in progress, to its end if wait is 1. Otherwise returns DPAR_MORE instead
 * of waiting. Returns DPAR_OK if no exchange is in progress. */
DPARI_INTERNAL dpar_status dpari_nb_advance(dpar_neighbours *neighbours, int wait);
/* Does both. Collective. */
DPARI_INTERNAL dpar_status dpari_nb_exchange(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                             const dpari_nb_kind *kind);

/* ==== particles/particles_plan.h ==== */

/* particles_plan - the data of distributed particles, and what their modules share. Private.
 *
 * A direction is a step of -1, 0 or 1 blocks in each dim. Its code is a number in base 3, whose
 * digits are the steps + 1, that of dim 0 first. The opposite direction therefore has the code
 * `directions - 1 - code`. */

enum {
    DPARI_PP_DIRECTIONS = 27, /* 3^DPAR_PARTICLES_MAX_DIMS */
    DPARI_PP_MASKS = 64,      /* 4^DPAR_PARTICLES_MAX_DIMS */
    DPARI_PP_FIELDS = 64,     /* the most fields in a call */
    /* Kinds of exchanges. Neighbours compare them. */
    DPARI_PP_MIGRATE = 1,
    DPARI_PP_GHOSTS,
    DPARI_PP_UPDATE,
    DPARI_PP_REDUCE
};

/* A field of a call, with its sizes in bytes. `numbers` is its components. */
typedef struct dpari_pp_field {
    unsigned char *at;
    int64_t size, stride; /* bytes of a particle, and from one to the next */
    int32_t type, numbers, is_position;
} dpari_pp_field;

/* Where the positions are. */
typedef struct dpari_pp_position {
    const unsigned char *at;
    int64_t stride;
    int32_t single; /* 1 for F32 */
    int32_t field;  /* number of the field that contains them */
    int64_t offset; /* bytes from the start of a particle in this field to its position */
} dpari_pp_position;

/* The neighbour in a direction. */
typedef struct dpari_pp_direction {
    int32_t peer; /* its number among the neighbours; -1 if a wall is there */
    int32_t step[DPAR_PARTICLES_MAX_DIMS];
    double shift[DPAR_PARTICLES_MAX_DIMS]; /* added to the positions of ghosts from there */
} dpari_pp_direction;

/* A list of numbers that grows. `room` is how many it can hold. */
typedef struct dpari_pp_list {
    int32_t *at;
    int64_t room;
} dpari_pp_list;

typedef struct dpari_particles {
    dpar_particles head; /* the public struct; it must be first */
    dpar_neighbours *neighbours;
    double low[DPAR_PARTICLES_MAX_DIMS], high[DPAR_PARTICLES_MAX_DIMS]; /* the whole box */
    /* Positions from low_open to below high_open certainly belong to this rank: its block, and what
     * is behind walls. */
    double low_open[DPAR_PARTICLES_MAX_DIMS], high_open[DPAR_PARTICLES_MAX_DIMS];
    double *cuts[DPAR_PARTICLES_MAX_DIMS];
    int32_t periodic[DPAR_PARTICLES_MAX_DIMS];
    int32_t order, half;
    double cutoff;
    /* The faces of the neighbours below and above in each dim that are opposite to those of this
     * rank, and what is added to the positions of the ghosts that these neighbours get. */
    double face[DPAR_PARTICLES_MAX_DIMS][2], face_shift[DPAR_PARTICLES_MAX_DIMS][2];
    int32_t directions; /* 3^dims */
    dpari_pp_direction direction[DPARI_PP_DIRECTIONS];
    /* For each set of faces that a particle may be near: in how many directions it is sent as a
     * ghost, and the codes of these directions. In the index of a set, bit 2 d stands for the low
     * face in dim d, bit 2 d + 1 for the high one. */
    int32_t targets[DPARI_PP_MASKS];
    int8_t target[DPARI_PP_MASKS][DPARI_PP_DIRECTIONS];
    /* Results of the last dpar_particles_ghosts. By direction: number of particles sent there,
     * index of the first one in `sent`, and number of ghosts from there. By neighbour: the same
     * numbers for all directions to it together, and the number of its first ghost. */
    int64_t own; /* number of own particles; -1 if ghosts must be found again */
    int64_t send_count[DPARI_PP_DIRECTIONS], send_first[DPARI_PP_DIRECTIONS];
    int64_t ghosts_from[DPARI_PP_DIRECTIONS];
    int64_t peer_sends[DPARI_PP_DIRECTIONS], peer_first[DPARI_PP_DIRECTIONS];
    int64_t peer_ghosts[DPARI_PP_DIRECTIONS], peer_ghost[DPARI_PP_DIRECTIONS];
    dpari_pp_list sent;   /* indices of own particles, by neighbour, then by direction */
    dpari_pp_list border; /* particles near a face, or those that leave; temporary */
    dpari_pp_list owner;  /* where those that leave go (dpari_pp_migration); temporary */
    int64_t out_bytes[DPARI_PP_DIRECTIONS], in_bytes[DPARI_PP_DIRECTIONS];
    dpari_pp_field field[DPARI_PP_FIELDS];
    int32_t begun;  /* DPARI_PP_UPDATE or DPARI_PP_REDUCE until the end of such a call, or 0 */
    int32_t fields; /* number of its fields */
    void *memory;   /* of the cuts */
} dpari_particles;

static inline dpari_particles *dpari_pp_of(dpar_particles *particles)
{
    return (dpari_particles *)(void *)particles;
}

/* Returns a coordinate of particle i. */
DPARI_ALWAYS_INLINE double dpari_pp_get(const dpari_pp_position *position, int64_t i, int32_t d)
{
    const unsigned char *at = position->at + i * position->stride;
    float single;
    double x;
    if (position->single) {
        dpari_elements_bits(&single, at + 4 * d, 4);
        return (double)single;
    }
    dpari_elements_bits(&x, at + 8 * d, 8);
    return x;
}

/* Stores coordinate d of the position at `at`, as F32 if `single`, otherwise as F64. */
DPARI_ALWAYS_INLINE void dpari_pp_put(int32_t single, unsigned char *at, int32_t d, double x)
{
    const float f = (float)x;
    if (single) {
        dpari_elements_bits(at + 4 * d, &f, 4);
    } else {
        dpari_elements_bits(at + 8 * d, &x, 8);
    }
}

/* Does what dpari_wrong does, for messages with real numbers. */
DPARI_INTERNAL dpar_status dpari_pp_wrong(dpar_why *why, const char *form, ...) DPARI_PRINTF(2, 3);
/* Checks n fields and converts them to plan->field. caller: the function, for messages. */
DPARI_INTERNAL dpar_status dpari_pp_set_fields(dpari_particles *plan, const char *caller,
                                               const dpar_particles_field *fields, int32_t n,
                                               dpar_why *why);
/* Checks the arrays of a call, and converts them to plan->field and *position. */
DPARI_INTERNAL dpar_status dpari_pp_set_arrays(dpari_particles *plan, const char *caller,
                                               const dpar_particles_arrays *arrays,
                                               dpari_pp_position *position, dpar_why *why);
/* Returns a hash of the kind of an exchange and of the first n of plan->field. */
DPARI_INTERNAL uint64_t dpari_pp_hash(const dpari_particles *plan, int32_t kind, int32_t n);
/* Makes a list long enough for `need` numbers, and keeps the first `keep`. */
DPARI_INTERNAL dpar_status dpari_pp_grow(const dpari_particles *plan, dpari_pp_list *list,
                                         int64_t need, int64_t keep, dpar_why *why);
/* Moves the position x[dims] back into the box in periodic dims, and finds the coordinates of the
 * block that owns it. Returns 0 if a coordinate is not finite or too far away, otherwise 1.
 * single: 1 to round coordinates that are moved to F32. */
DPARI_INTERNAL int dpari_pp_locate(const dpari_particles *plan, double *x, int32_t single,
                                   int32_t *coord);
/* Returns the rank that owns the block at coord[dims]. */
DPARI_INTERNAL int32_t dpari_pp_rank(const dpari_particles *plan, const int32_t *coord);

/* ==== particles/neighbours.c ==== */

/* Exchanges messages with neighbours if only the sender of each one knows its length.
 *
 * ../exchange runs the exchange. For each neighbour a rank has two pieces of memory, which
 * exchanges use in turn, and for each piece an entry that says where it is and how many bytes it
 * holds. Neighbours that share memory read the entry, and then the bytes in place. A rank packs
 * into a piece again after one exchange in between. That exchange has ended only when all
 * neighbours were ready for it, so that they no longer read the old contents of the piece. For the
 * same reason a piece may be replaced by a larger one without waiting.
 *
 * A piece begins with a head of 64 bytes, which holds the number of bytes that follow. A neighbour
 * that does not share memory gets a message with the head and the first bytes. Sender and receiver
 * both know the length of this message, because both know how many bytes were sent in the exchange
 * before. The head shows the receiver whether more bytes follow in a second message, which is the
 * second step of the exchange. */

enum {
    DPARI_NB_HEAD = DPARI_LINE, /* bytes of a piece before the data */
    DPARI_NB_FIRST = 448,       /* bytes of data for which every first message has space */
    DPARI_NB_MOST = 4096        /* the most neighbours of a rank */
};
#define DPARI_NB_BYTES (INT64_C(1) << 40) /* the most bytes to a neighbour */

/* Says where a piece is, for a neighbour that shares memory. Each entry fills a cache line. */
typedef struct dpari_nb_entry {
    uint64_t ref;
    int64_t bytes;
    char padding[DPARI_LINE - 16];
} dpari_nb_entry;

typedef struct dpari_nb_piece {
    unsigned char *at;
    int64_t bytes; /* of the memory, with the head */
} dpari_nb_piece;

/* What is known about a neighbour, in addition to its dpari_exchange_peer. */
typedef struct dpari_nb_peer {
    dpari_nb_piece out[2];
    dpari_nb_piece in;                   /* where its messages arrive */
    int64_t last_out[DPARI_NB_CHANNELS]; /* bytes sent to it by the last exchange of each channel */
    int64_t last_in[DPARI_NB_CHANNELS];  /* and bytes received from it */
    int64_t first_in;                    /* length of its first message in this exchange */
    int64_t first_out;                   /* and of the one to it */
    const dpari_nb_entry *entry;         /* its entries for this rank; NULL without shared memory */
    uint64_t ref[2];                     /* the pieces that were mapped last */
    const unsigned char *mapped[2];
} dpari_nb_peer;

typedef struct dpari_neighbours {
    dpar_neighbours head; /* the public struct; it must be first */
    dpari_exchange x;
    dpari_nb_peer *peer;
    dpari_nb_entry *entry; /* [count][2], registered memory */
    int32_t *rank;
    int32_t *number; /* [count] the number of this rank among the neighbours of each neighbour */
    const void **in;
    int64_t *in_bytes;
    int64_t *record; /* [4 * count] references that are sent, then those that are received */
    int32_t channel; /* of the exchange in progress; -1 if the lengths are known */
    void *memory;    /* registered memory of the lines, the tables and the entries */
} dpari_neighbours;

static dpari_neighbours *dpari_nb_of(dpar_neighbours *neighbours)
{
    return (dpari_neighbours *)(void *)neighbours;
}

/* Returns the communicator whose memory is used. */
static dpar_comm *dpari_nb_memory(const dpari_neighbours *plan)
{
    return plan->x.world ? plan->x.node : plan->head.comm;
}

/* Returns the length of a first message if the last exchange has sent `last` bytes of data. */
static int64_t dpari_nb_agreed(int64_t last)
{
    return DPARI_NB_HEAD + dpari_exchange_lines(last + last / 8 + DPARI_NB_FIRST);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Replaces a piece by one of at least `bytes` bytes, and copies the first `keep` bytes to it. */
static DPARI_COLD dpar_status dpari_nb_grow(dpari_neighbours *plan, dpari_nb_piece *piece,
                                            int64_t bytes, int64_t keep)
{
    dpar_comm *of = dpari_nb_memory(plan);
    const int64_t all = dpari_exchange_lines(bytes + bytes / 2);
    void *memory = NULL;
    const dpar_status status = dpar_comm_alloc(of, all, &memory);
    if (status != DPAR_OK) {
        if (of != plan->head.comm) {
            return dpari_repeat(status, &plan->head.comm->why, of->why.text);
        }
        return status;
    }
    if (keep > 0) {
        dpari_elements_bits(memory, piece->at, (size_t)keep);
    }
    dpar_comm_release(of, piece->at);
    piece->at = (unsigned char *)memory;
    piece->bytes = all;
    return DPAR_OK;
}

/* Returns the number of the piece that the next exchange sends. */
static int dpari_nb_turn(const dpari_neighbours *plan)
{
    return (int)((plan->x.count + 1) & 1);
}

/* Provides a piece for `bytes` bytes to neighbour k, which is also long enough for any first
 * message to it. */
static dpar_status dpari_nb_reserve(dpari_neighbours *plan, int32_t k, int64_t bytes)
{
    dpari_nb_peer *peer = &plan->peer[k];
    dpari_nb_piece *piece = &peer->out[dpari_nb_turn(plan)];
    int64_t need = DPARI_NB_HEAD + bytes;
    int32_t c;
    for (c = 0; c < DPARI_NB_CHANNELS && dpari_exchange_sends(&plan->x, k); c++) {
        need = dpari_most(need, dpari_nb_agreed(peer->last_out[c]));
    }
    if (piece->at && piece->bytes >= need) {
        return DPAR_OK;
    }
    return dpari_nb_grow(plan, piece, need, 0);
}

DPAR_API void *dpar_neighbours_buffer(dpar_neighbours *neighbours, int32_t k, int64_t bytes)
{
    dpari_neighbours *plan = dpari_nb_of(neighbours);
    if (!neighbours) {
        return NULL;
    }
    if (k < 0 || k >= neighbours->count || bytes < 0 || bytes > DPARI_NB_BYTES) {
        (void)dpari_comm_wrong(neighbours->comm,
                               "dpar_neighbours_buffer: neighbour %d is not 0 to %d, or %ld bytes "
                               "are not 0 to 2^40",
                               k, neighbours->count - 1, bytes);
        return NULL;
    }
    if (dpari_nb_reserve(plan, k, bytes) != DPAR_OK) {
        return NULL;
    }
    return plan->peer[k].out[dpari_nb_turn(plan)].at + DPARI_NB_HEAD;
}

/* ---- the functions that ../exchange calls ---------------------------------------------------- */

static unsigned char *dpari_nb_message(void *of, int32_t s, int32_t i, int sends)
{
    const dpari_neighbours *plan = (const dpari_neighbours *)of;
    const dpari_nb_peer *peer = &plan->peer[i];
    if (sends) {
        return peer->out[plan->x.count & 1].at + (s > 0 ? peer->first_out : 0);
    }
    return peer->in.at + (s > 0 ? peer->first_in : 0);
}

/* Does nothing: what a rank sends to itself is taken as if it came from a neighbour. */
static void dpari_nb_take_own(void *of, int32_t s)
{
    (void)of;
    (void)s;
}

/* Finds what a neighbour that shares memory has packed for this rank. */
static dpar_status dpari_nb_take_shared(dpari_neighbours *plan, int32_t i)
{
    dpari_nb_peer *peer = &plan->peer[i];
    const int turn = (int)(plan->x.count & 1);
    const dpari_nb_entry *entry = &peer->entry[turn];
    if (entry->ref != peer->ref[turn] || !peer->mapped[turn]) {
        peer->mapped[turn] = (const unsigned char *)dpari_at(plan->x.world, entry->ref);
        peer->ref[turn] = entry->ref;
        if (!peer->mapped[turn]) {
            return dpari_exchange_unmapped(&plan->x, entry->ref);
        }
    }
    plan->in[i] = peer->mapped[turn] + DPARI_NB_HEAD;
    plan->in_bytes[i] = entry->bytes;
    return DPAR_OK;
}

/* Reads the head of a message that has arrived. If more bytes follow, makes the second step receive
 * them. */
static dpar_status dpari_nb_take_message(dpari_neighbours *plan, int32_t i)
{
    dpari_nb_peer *peer = &plan->peer[i];
    dpari_exchange_flow *rest = &plan->x.flow[i * plan->x.steps + 1];
    int64_t bytes;
    dpari_elements_bits(&bytes, peer->in.at, 8);
    if (bytes < 0 || bytes > DPARI_NB_BYTES) {
        return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MISMATCH,
                                    "neighbours: the message from rank %d does not begin with its "
                                    "length; another operation used tag %d",
                                    plan->x.peer[i].rank, plan->x.tag);
    }
    if (plan->channel >= 0) {
        peer->last_in[plan->channel] = bytes;
    } else if (DPARI_NB_HEAD + bytes != peer->first_in) {
        return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MISMATCH,
                                    "neighbours: rank %d sends %ld bytes, but rank %d expects %ld",
                                    plan->x.peer[i].rank, bytes, plan->head.comm->rank,
                                    peer->first_in - DPARI_NB_HEAD);
    }
    if (DPARI_NB_HEAD + bytes > peer->first_in) {
        if (DPARI_NB_HEAD + bytes > peer->in.bytes &&
            dpari_nb_grow(plan, &peer->in, DPARI_NB_HEAD + bytes, peer->first_in) != DPAR_OK) {
            return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MEMORY,
                                        "neighbours: no memory for %ld bytes from rank %d", bytes,
                                        plan->x.peer[i].rank);
        }
        rest->in_bytes[0] = DPARI_NB_HEAD + bytes - peer->first_in;
        rest->takes[0] = 1;
        plan->x.step[1].alone = 0;
    }
    plan->in[i] = peer->in.at + DPARI_NB_HEAD;
    plan->in_bytes[i] = bytes;
    return DPAR_OK;
}

static dpar_status dpari_nb_take(void *of, int32_t s, int32_t i)
{
    dpari_neighbours *plan = (dpari_neighbours *)of;
    if (s > 0) {
        return DPAR_OK;
    }
    if (i == plan->x.self) {
        plan->in[i] = plan->peer[i].out[plan->x.count & 1].at + DPARI_NB_HEAD;
        plan->in_bytes[i] = plan->entry[2 * i + (plan->x.count & 1)].bytes;
        return DPAR_OK;
    }
    return dpari_exchange_sends(&plan->x, i) ? dpari_nb_take_message(plan, i)
                                             : dpari_nb_take_shared(plan, i);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Prepares the messages to and from neighbour i. */
static dpar_status dpari_nb_prepare_messages(dpari_neighbours *plan, int32_t i, int64_t bytes,
                                             const dpari_nb_kind *kind)
{
    dpari_nb_peer *peer = &plan->peer[i];
    dpari_nb_piece *piece = &peer->out[dpari_nb_turn(plan)];
    dpari_exchange_flow *first = &plan->x.flow[i * plan->x.steps], *rest = first + 1;
    if (kind->in_bytes) {
        peer->first_out = DPARI_NB_HEAD + bytes;
        peer->first_in = DPARI_NB_HEAD + kind->in_bytes[i];
    } else {
        peer->first_out = dpari_nb_agreed(peer->last_out[kind->channel]);
        peer->first_in = dpari_nb_agreed(peer->last_in[kind->channel]);
        peer->last_out[kind->channel] = bytes;
    }
    dpari_elements_bits(piece->at, &bytes, 8);
    first->out_bytes[0] = peer->first_out;
    first->in_bytes[0] = peer->first_in;
    rest->out_bytes[0] = dpari_most(DPARI_NB_HEAD + bytes - peer->first_out, 0);
    rest->in_bytes[0] = 0;
    rest->takes[0] = 0;
    if (rest->out_bytes[0] > 0) {
        plan->x.step[1].alone = 0;
    }
    if (peer->first_in > peer->in.bytes) {
        return dpari_nb_grow(plan, &peer->in, peer->first_in, 0);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_nb_break(dpar_neighbours *neighbours,
                                                     dpar_status status, const char *text)
{
    const dpari_neighbours *plan = dpari_nb_of(neighbours);
    if (plan->x.node != neighbours->comm) {
        (void)dpari_comm_wrong_all(plan->x.node, status, "%s", text);
    }
    return dpari_comm_wrong_all(neighbours->comm, status, "%s", text);
}

DPARI_INTERNAL dpar_status dpari_nb_is_over(const dpar_neighbours *neighbours)
{
    return dpari_exchange_is_over(&((const dpari_neighbours *)(const void *)neighbours)->x, "");
}

DPARI_INTERNAL dpar_status dpari_nb_begin(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                          const dpari_nb_kind *kind)
{
    dpari_neighbours *plan = dpari_nb_of(neighbours);
    const int turn = dpari_nb_turn(plan);
    dpar_status status = dpari_exchange_may_begin(&plan->x);
    int32_t i;
    if (status != DPAR_OK) {
        return status;
    }
    plan->channel = kind->in_bytes ? -1 : kind->channel;
    plan->x.step[1].alone = 1;
    for (i = 0; i < neighbours->count; i++) {
        dpari_nb_entry *entry = &plan->entry[2 * i + turn];
        status = dpari_nb_reserve(plan, i, out_bytes[i]);
        if (status == DPAR_OK && dpari_exchange_sends(&plan->x, i)) {
            status = dpari_nb_prepare_messages(plan, i, out_bytes[i], kind);
        }
        if (status != DPAR_OK) {
            return dpari_comm_wrong_all(neighbours->comm, status,
                                        "neighbours: no memory for %ld bytes to rank %d",
                                        out_bytes[i], neighbours->rank[i]);
        }
        entry->bytes = out_bytes[i];
        if (plan->x.peer[i].line) {
            entry->ref = dpari_ref(plan->x.world, plan->peer[i].out[turn].at, 1);
        }
    }
    return dpari_exchange_begin(&plan->x, DPAR_COPY, kind->hash);
}

DPARI_INTERNAL dpar_status dpari_nb_advance(dpar_neighbours *neighbours, int wait)
{
    return dpari_exchange_advance(&dpari_nb_of(neighbours)->x, wait);
}

DPARI_INTERNAL dpar_status dpari_nb_exchange(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                             const dpari_nb_kind *kind)
{
    const dpar_status status = dpari_nb_begin(neighbours, out_bytes, kind);
    return status == DPAR_OK ? dpari_nb_advance(neighbours, 1) : status;
}

/* Checks `bytes`, and copies the bytes for neighbour k to its piece unless they are there. A wrong
 * argument breaks the communicator, because the others may already wait for these bytes. */
static dpar_status dpari_nb_pack(dpari_neighbours *plan, int32_t k, const void *out, int64_t bytes)
{
    dpari_nb_piece *piece = &plan->peer[k].out[dpari_nb_turn(plan)];
    dpar_comm *comm = plan->head.comm;
    if (bytes < 0 || bytes > DPARI_NB_BYTES) {
        return dpari_comm_wrong_all(comm, DPAR_E_ARG,
                                    "dpar_neighbours_exchange: %ld bytes from rank %d to its "
                                    "neighbour %d, but 0 to 2^40 are allowed",
                                    bytes, comm->rank, k);
    }
    if (!out || (piece->at && out == piece->at + DPARI_NB_HEAD)) {
        if (bytes > 0 && DPARI_NB_HEAD + bytes > piece->bytes) {
            return dpari_comm_wrong_all(comm, DPAR_E_ARG,
                                        "dpar_neighbours_exchange: %ld bytes from rank %d to its "
                                        "neighbour %d, but dpar_neighbours_buffer has returned "
                                        "memory for %ld",
                                        bytes, comm->rank, k,
                                        dpari_most(piece->bytes - DPARI_NB_HEAD, 0));
        }
        return DPAR_OK;
    }
    if (dpari_nb_reserve(plan, k, bytes) != DPAR_OK) {
        return dpari_comm_wrong_all(comm, DPAR_E_MEMORY,
                                    "neighbours: no memory for %ld bytes to rank %d", bytes,
                                    plan->rank[k]);
    }
    dpari_elements_bits(piece->at + DPARI_NB_HEAD, out, (size_t)bytes);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_neighbours_exchange(dpar_neighbours *neighbours, const void *const *out,
                                              const int64_t *out_bytes)
{
    dpari_nb_kind kind = {0, 0, NULL};
    int32_t k;
    if (!neighbours) {
        return DPAR_E_ARG;
    }
    if (neighbours->count > 0 && !out_bytes) {
        return dpari_comm_wrong_all(neighbours->comm, DPAR_E_ARG,
                                    "dpar_neighbours_exchange: out_bytes is NULL on rank %d",
                                    neighbours->comm->rank);
    }
    for (k = 0; k < neighbours->count; k++) {
        const dpar_status status =
            dpari_nb_pack(dpari_nb_of(neighbours), k, out ? out[k] : NULL, out_bytes[k]);
        if (status != DPAR_OK) {
            return dpari_nb_break(neighbours, status, neighbours->comm->why.text);
        }
    }
    return dpari_nb_exchange(neighbours, out_bytes, &kind);
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Checks the description of this rank. */
static dpar_status dpari_nb_check(const dpar_comm *comm, const dpar_neighbours_desc *desc,
                                  dpar_why *why)
{
    int32_t i, k;
    if (!desc || desc->count < 0 || desc->count > DPARI_NB_MOST ||
        (desc->count > 0 && !desc->rank)) {
        return dpari_wrong(why,
                           "dpar_neighbours_make: desc or desc.rank is NULL, or the number of "
                           "neighbours, %d, is not 0 to %d",
                           desc ? desc->count : 0, (int32_t)DPARI_NB_MOST);
    }
    if (desc->tag < 0) {
        return dpari_wrong(why, "dpar_neighbours_make: tag %d is negative", desc->tag);
    }
    for (i = 0; i < desc->count; i++) {
        if (desc->rank[i] < 0 || desc->rank[i] >= comm->size) {
            return dpari_wrong(why,
                               "dpar_neighbours_make: neighbour %d is rank %d, but there are %d "
                               "ranks",
                               i, desc->rank[i], comm->size);
        }
        for (k = 0; k < i; k++) {
            if (desc->rank[k] == desc->rank[i]) {
                return dpari_wrong(why, "dpar_neighbours_make: rank %d is neighbour %d and %d",
                                   desc->rank[i], k, i);
            }
        }
    }
    if (comm->mem && !comm->node && !dpari_world_of(comm)) {
        return dpari_wrong(why, "dpar_neighbours_make: the bytes are in the host's memory, but the "
                                "communicator sends a device's");
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_nb_state(dpari_facts *facts, const void *given)
{
    facts->of = NULL;
    dpari_fact(facts, "tag", 0, ((const dpar_neighbours_desc *)given)->tag);
}

/* Allocates the memory of a plan. The first pass counts bytes, the second sets pointers. */
static dpar_status dpari_nb_alloc(dpari_neighbours *plan, const dpar_neighbours_desc *desc,
                                  dpar_why *why)
{
    const int32_t n = desc->count;
    dpar_comm *of = dpari_nb_memory(plan);
    dpari_room room = dpari_room_of(NULL);
    int32_t pass;
    for (pass = 0; pass < 2; pass++) {
        room.used = 0;
        plan->x.line = (dpari_exchange_line *)dpari_room_take(&room, 1, sizeof *plan->x.line);
        dpari_exchange_room(&plan->x, &room, n, 2, plan->x.world ? plan->x.node->size : 0);
        plan->entry = (dpari_nb_entry *)dpari_room_take(&room, 2 * n, sizeof *plan->entry);
        plan->peer = (dpari_nb_peer *)dpari_room_take(&room, n, sizeof *plan->peer);
        plan->record = (int64_t *)dpari_room_take(&room, 4 * n, sizeof *plan->record);
        plan->in = (const void **)dpari_room_take(&room, n, sizeof *plan->in);
        plan->in_bytes = (int64_t *)dpari_room_take(&room, n, sizeof *plan->in_bytes);
        plan->rank = (int32_t *)dpari_room_take(&room, n, sizeof *plan->rank);
        plan->number = (int32_t *)dpari_room_take(&room, n, sizeof *plan->number);
        if (pass == 0) {
            const dpar_status status = dpar_comm_alloc(of, room.used, &plan->memory);
            if (status != DPAR_OK) {
                return dpari_repeat(status, why, of->why.text);
            }
            room.at = (unsigned char *)plan->memory;
        }
    }
    return DPAR_OK;
}

/* Sets the fields that do not depend on other ranks. */
static void dpari_nb_set(dpari_neighbours *plan, const dpar_neighbours_desc *desc)
{
    int32_t i;
    for (i = 0; i < desc->count; i++) {
        const int self = desc->rank[i] == plan->head.comm->rank;
        plan->rank[i] = desc->rank[i];
        plan->x.peer[i].rank = desc->rank[i];
        plan->x.peer[i].world = self ? 0 : -1; /* a rank sends no messages to itself */
        plan->x.flow[2 * i].takes[DPARI_EXCHANGE_FORWARD] = 1;
        if (self) {
            plan->x.self = i;
        }
    }
    plan->head.count = desc->count;
    plan->head.rank = plan->rank;
    plan->head.in = plan->in;
    plan->head.in_bytes = plan->in_bytes;
    plan->x.plan = plan;
    plan->x.message = dpari_nb_message;
    plan->x.take = dpari_nb_take;
    plan->x.take_own = dpari_nb_take_own;
    plan->x.name = "neighbours";
    plan->x.end = "dpar_particles_end"; /* neighbours alone have no exchange in two parts */
    plan->x.item = "list";
    plan->x.items = desc->count;
    plan->x.tag = desc->tag;
    plan->x.peers = desc->count;
    plan->x.steps = 2;
    plan->x.step[0].modes = plan->x.step[1].modes = 1 << DPARI_EXCHANGE_FORWARD;
    plan->x.step[1].alone = 1;
}

/* Finds out which number this rank has among the neighbours of each of its neighbours. Fails if a
 * rank lists another one that does not list it. Collective. */
static dpar_status dpari_nb_numbers(dpari_neighbours *plan, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    void *memory = dpari_object_alloc(comm, 8 * (int64_t)comm->size);
    int32_t *mine = (int32_t *)memory, *theirs;
    dpar_status status = DPAR_OK;
    int32_t i;
    if (!memory) {
        status = dpari_say(DPAR_E_MEMORY, why, "neighbours: no memory for %d ranks", comm->size);
    }
    status = dpari_agree(comm, status, why);
    if (status != DPAR_OK) {
        dpari_object_release(memory);
        return status;
    }
    theirs = mine + comm->size;
    for (i = 0; i < plan->head.count; i++) {
        mine[plan->rank[i]] = i + 1;
    }
    status = dpar_all_to_all(comm, mine, theirs, 1, DPAR_I32, NULL);
    if (status != DPAR_OK) {
        (void)dpari_repeat(status, why, comm->why.text);
    }
    for (i = 0; i < comm->size && status == DPAR_OK; i++) {
        if ((mine[i] > 0) != (theirs[i] > 0)) {
            status = dpari_wrong(why,
                                 "dpar_neighbours_make: rank %d lists rank %d, which does not list "
                                 "it",
                                 mine[i] > 0 ? comm->rank : i, mine[i] > 0 ? i : comm->rank);
        }
    }
    for (i = 0; i < plan->head.count && status == DPAR_OK; i++) {
        plan->number[i] = theirs[plan->rank[i]] - 1;
    }
    dpari_object_release(memory);
    return dpari_agree(comm, status, why);
}

/* Exchanges references to the memory of ranks that share it. Collective. */
static dpar_status dpari_nb_connect(dpari_neighbours *plan, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t n = plan->head.count;
    int64_t *mine = plan->record, *theirs = plan->record + 2 * n;
    dpar_status status = dpari_exchange_find_node(&plan->x);
    int32_t i;
    for (i = 0; i < n && status == DPAR_OK; i++) {
        if (plan->x.world && plan->x.peer[i].world >= 0) {
            mine[2 * i] = (int64_t)dpari_ref(plan->x.world, plan->x.line, 1);
            mine[2 * i + 1] = (int64_t)dpari_ref(plan->x.world, plan->entry, 1);
        }
    }
    if (status == DPAR_OK) {
        status = dpari_exchange_records(&plan->x, mine, theirs, 2);
    }
    for (i = 0; i < n && status == DPAR_OK; i++) {
        dpari_exchange_peer *peer = &plan->x.peer[i];
        if (i == plan->x.self) {
            continue;
        }
        if (peer->world < 0 || theirs[2 * i] == 0 || mine[2 * i] == 0) {
            peer->world = -1;
            continue;
        }
        plan->x.shared++;
        peer->line = (dpari_exchange_line *)dpari_at(plan->x.world, (uint64_t)theirs[2 * i]);
        plan->peer[i].entry =
            (const dpari_nb_entry *)dpari_at(plan->x.world, (uint64_t)theirs[2 * i + 1]);
        if (!peer->line || !plan->peer[i].entry) {
            status = dpari_exchange_unmapped(&plan->x, (uint64_t)theirs[2 * i]);
            break;
        }
        plan->peer[i].entry += INT64_C(2) * plan->number[i];
    }
    plan->x.step[0].meets = plan->x.shared > 0;
    if (status != DPAR_OK) {
        (void)dpari_repeat(status, why, comm->why.text);
    }
    return dpari_agree(comm, status, why);
}

/* Releases the memory of a plan, but not the plan. */
static DPARI_COLD void dpari_nb_release(dpari_neighbours *plan)
{
    dpar_comm *of = dpari_nb_memory(plan);
    int32_t i;
    for (i = 0; i < plan->head.count; i++) {
        dpar_comm_release(of, plan->peer[i].out[0].at);
        dpar_comm_release(of, plan->peer[i].out[1].at);
        dpar_comm_release(of, plan->peer[i].in.at);
    }
    dpar_comm_release(of, plan->memory);
}

DPAR_API DPARI_COLD dpar_status dpar_neighbours_make(dpar_comm *comm,
                                                     const dpar_neighbours_desc *desc,
                                                     dpar_neighbours **neighbours, dpar_why *why)
{
    dpari_neighbours *plan = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_neighbours_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    status = neighbours ? dpari_nb_check(comm, desc, why)
                        : dpari_wrong(why, "dpar_neighbours_make: neighbours is NULL");
    if (status == DPAR_OK) {
        plan = (dpari_neighbours *)dpari_object_alloc(comm, (int64_t)sizeof *plan);
        if (plan) {
            plan->head.comm = plan->x.comm = comm;
            plan->x.node = comm->node ? comm->node : comm;
            plan->x.world = dpari_world_of(plan->x.node);
            plan->x.self = -1;
            status = dpari_nb_alloc(plan, desc, why);
        } else {
            status = dpari_say(DPAR_E_MEMORY, why, "dpar_neighbours_make: no memory");
        }
    }
    status = dpari_agree_on(comm, status, "neighbours", dpari_nb_state, desc, why);
    if (status == DPAR_OK) {
        dpari_nb_set(plan, desc);
        status = dpari_nb_numbers(plan, why);
    }
    if (status == DPAR_OK) {
        status = dpari_nb_connect(plan, why);
    }
    if (status != DPAR_OK) {
        if (plan && plan->memory) {
            dpari_nb_release(plan);
        }
        dpari_object_release(plan);
        return status;
    }
    *neighbours = &plan->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_neighbours_free(dpar_neighbours *neighbours)
{
    dpari_neighbours *plan = dpari_nb_of(neighbours);
    dpar_status status;
    int32_t refused;
    if (!neighbours) {
        return DPAR_OK;
    }
    status = dpari_exchange_close(&plan->x, "dpar_neighbours_free: ", &refused);
    if (refused) {
        return status;
    }
    dpari_nb_release(plan);
    return dpari_object_end(status, plan);
}

/* ==== particles/particles.c ==== */

/* Makes distributed particles: checks the description, cuts the box, lists the neighbours and the
 * directions in which they are, and finds the owner of a position. particles_migrate.c sends
 * particles to new owners, and particles_ghosts.c makes and updates ghosts. */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pp_wrong(dpar_why *why, const char *form, ...)
{
    dpar_text text;
    va_list list;
    if (why) {
        dpari_text_why(&text, why);
        va_start(list, form);
        dpari_text_print_list(&text, form, &list);
        va_end(list);
    }
    return DPAR_E_ARG;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static dpar_status dpari_pp_check_dim(const dpar_particles_desc *desc, int32_t d, dpar_why *why)
{
    if (!dpari_finite(desc->low[d]) || !dpari_finite(desc->high[d]) ||
        !(desc->low[d] < desc->high[d]) || !dpari_finite(desc->high[d] - desc->low[d])) {
        return dpari_pp_wrong(
            why,
            "dpar_particles_make: dim %d goes from low %.9g to high %.9g, but high "
            "must be above low",
            d, desc->low[d], desc->high[d]);
    }
    if (!dpari_is_flag(desc->periodic[d]) || desc->parts[d] < 0) {
        return dpari_wrong(why,
                           "dpar_particles_make: periodic[%d] is %d, but must be 0 or 1, or "
                           "parts[%d] is %d, but must not be negative",
                           d, desc->periodic[d], d, desc->parts[d]);
    }
    if (desc->cuts[d] && desc->parts[d] < 1) {
        return dpari_wrong(why, "dpar_particles_make: cuts[%d] needs parts[%d] of at least 1", d,
                           d);
    }
    return DPAR_OK;
}

static dpar_status dpari_pp_check(const dpar_comm *comm, const dpar_particles_desc *desc,
                                  dpar_why *why)
{
    int32_t d;
    if (!desc) {
        return dpari_wrong(why, "dpar_particles_make: desc or particles is NULL");
    }
    if (desc->dims < 1 || desc->dims > DPAR_PARTICLES_MAX_DIMS) {
        return dpari_wrong(why, "dpar_particles_make: %d dims, but 1 to %d are allowed", desc->dims,
                           (int32_t)DPAR_PARTICLES_MAX_DIMS);
    }
    if (!dpari_is_flag(desc->half) || !dpari_is_flag(desc->order) || desc->tag < 0 ||
        !(desc->cutoff >= 0.0) || !dpari_finite(desc->cutoff)) {
        return dpari_pp_wrong(
            why,
            "dpar_particles_make: half %d, order %d, tag %d, cutoff %.9g: half and order "
            "must be 0 or 1, and tag and cutoff at least 0",
            desc->half, desc->order, desc->tag, desc->cutoff);
    }
    if (comm->size > 1 << 24) {
        return dpari_say(DPAR_E_RANGE, why, "dpar_particles_make: %d ranks, but at most 2^24",
                         comm->size);
    }
    for (d = 0; d < desc->dims; d++) {
        const dpar_status status = dpari_pp_check_dim(desc, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Chooses the numbers of ranks along the dims that the description leaves open. */
static dpar_status dpari_pp_choose(const dpar_comm *comm, const dpar_particles_desc *desc,
                                   int32_t *parts, dpar_why *why)
{
    dpar_cart_choose_desc grid;
    double longest = 0.0;
    int32_t d;
    dpari_zero(&grid, sizeof grid);
    for (d = 0; d < desc->dims; d++) {
        longest = dpari_mostf(longest, desc->high[d] - desc->low[d]);
    }
    grid.ranks = comm->size;
    grid.dims = desc->dims;
    for (d = 0; d < desc->dims; d++) { /* cubic cells, at least as many as there are ranks */
        grid.cells[d] =
            comm->size + (int64_t)((desc->high[d] - desc->low[d]) / longest * 16777216.0);
        parts[d] = desc->parts[d];
        grid.periodic |= (uint32_t)desc->periodic[d] << d;
    }
    return dpar_cart_choose_parts(&grid, parts, NULL, why);
}

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pp_state(dpari_facts *facts, const void *given)
{
    const dpar_particles_desc *desc = (const dpar_particles_desc *)given;
    int32_t d, i;
    facts->of = NULL;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "half", 0, desc->half);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "tag", 0, desc->tag);
    dpari_fact_real(facts, "cutoff", 0, desc->cutoff);
    for (d = 0; d < desc->dims; d++) {
        uint64_t hash = 0;
        dpari_fact_real(facts, "low[#]", d, desc->low[d]);
        dpari_fact_real(facts, "high[#]", d, desc->high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
        dpari_fact(facts, "parts[#]", d, desc->parts[d]);
        dpari_fact(facts, "cuts[#] (0: NULL)", d, desc->cuts[d] != NULL);
        for (i = 0; desc->cuts[d] && i <= desc->parts[d]; i++) {
            hash = dpari_hash_real(hash, desc->cuts[d][i]);
        }
        dpari_fact_hash(facts, "cuts[#]", d, hash);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

DPARI_INTERNAL int32_t dpari_pp_rank(const dpari_particles *plan, const int32_t *coord)
{
    const int32_t dims = plan->head.dims;
    int32_t rank = 0, i;
    for (i = 0; i < dims; i++) {
        const int32_t d = plan->order == DPAR_ORDER_FIRST_FASTEST ? dims - 1 - i : i;
        rank = rank * plan->head.parts[d] + coord[d];
    }
    return rank;
}

static void dpari_pp_set_coord(dpari_particles *plan)
{
    const int32_t dims = plan->head.dims;
    int32_t rest = plan->head.comm->rank, i;
    for (i = dims - 1; i >= 0; i--) {
        const int32_t d = plan->order == DPAR_ORDER_FIRST_FASTEST ? dims - 1 - i : i;
        plan->head.coord[d] = rest % plan->head.parts[d];
        rest /= plan->head.parts[d];
    }
}

/* Sets the cuts of a dim, and checks that they ascend and that no block is narrower than the
 * cutoff. */
static dpar_status dpari_pp_cut(dpari_particles *plan, const dpar_particles_desc *desc, int32_t d,
                                dpar_why *why)
{
    const int32_t parts = plan->head.parts[d], at = plan->head.coord[d];
    const int open = !plan->periodic[d] && parts == 1;
    /* A cutoff of (high - low) / parts may exceed the width of a block by the rounding of cuts. */
    const double rounding = 1e-15 * (desc->high[d] > -desc->low[d] ? desc->high[d] : -desc->low[d]);
    double *cuts = plan->cuts[d];
    int32_t i;
    for (i = 0; i <= parts; i++) {
        cuts[i] = desc->cuts[d] ? desc->cuts[d][i]
                                : desc->low[d] + (desc->high[d] - desc->low[d]) * i / parts;
    }
    if (!desc->cuts[d]) {
        cuts[parts] = desc->high[d];
    }
    if (!(cuts[0] >= desc->low[d] && cuts[0] <= desc->low[d]) ||
        !(cuts[parts] >= desc->high[d] && cuts[parts] <= desc->high[d])) {
        return dpari_pp_wrong(
            why,
            "dpar_particles_make: cuts[%d] goes from %.9g to %.9g, but must go from "
            "low, %.9g, to high, %.9g",
            d, cuts[0], cuts[parts], desc->low[d], desc->high[d]);
    }
    for (i = 0; i < parts; i++) {
        if (!(cuts[i] < cuts[i + 1])) {
            return dpari_pp_wrong(
                why,
                "dpar_particles_make: dim %d is cut at %.9g and then at %.9g, but "
                "cuts must ascend",
                d, cuts[i], cuts[i + 1]);
        }
        if (!open && desc->cutoff > cuts[i + 1] - cuts[i] + rounding) {
            return dpari_pp_wrong(
                why,
                "dpar_particles_make: cutoff %.9g is wider than block %d of dim %d, "
                "which has width %.9g; use fewer parts in this dim",
                desc->cutoff, i, d, cuts[i + 1] - cuts[i]);
        }
    }
    plan->head.low[d] = plan->low_open[d] = plan->face[d][0] = cuts[at];
    plan->head.high[d] = plan->high_open[d] = plan->face[d][1] = cuts[at + 1];
    if (plan->periodic[d] && at == 0) { /* the neighbour below is at the high end */
        plan->face[d][0] = plan->high[d];
        plan->face_shift[d][0] = plan->high[d] - plan->low[d];
    }
    if (plan->periodic[d] && at == parts - 1) {
        plan->face[d][1] = plan->low[d];
        plan->face_shift[d][1] = plan->low[d] - plan->high[d];
    }
    if (!plan->periodic[d] && at == 0) {
        plan->low_open[d] = -1.7976931348623157e308;
    }
    if (!plan->periodic[d] && at == parts - 1) {
        plan->high_open[d] = 1.7976931348623157e308;
    }
    return DPAR_OK;
}

/* Moves x back into the box in a periodic dim. Returns 0 if it is too far away, otherwise 1. */
static int dpari_pp_wrap(const dpari_particles *plan, int32_t d, int32_t single, double *x)
{
    const double low = plan->low[d], length = plan->high[d] - low, q = (*x - low) / length;
    int64_t k;
    if (!(q < 1125899906842624.0 && q > -1125899906842624.0)) { /* 2^50 */
        return 0;
    }
    if (*x >= low && *x < plan->high[d]) {
        return 1;
    }
    k = (int64_t)q;
    k -= (double)k > q;
    *x -= (double)k * length;
    if (*x < low) {
        *x += length;
    }
    if (single) {
        *x = (double)(float)*x;
    }
    if (*x >= plan->high[d] || *x < low) { /* rounding has moved it to the end */
        *x = low;
    }
    return 1;
}

DPARI_INTERNAL int dpari_pp_locate(const dpari_particles *plan, double *x, int32_t single,
                                   int32_t *coord)
{
    int32_t d;
    for (d = 0; d < plan->head.dims; d++) {
        int32_t first = 0, last = plan->head.parts[d] - 1; /* the block is one of these */
        if (!dpari_finite(x[d]) || (plan->periodic[d] && !dpari_pp_wrap(plan, d, single, &x[d]))) {
            return 0;
        }
        while (first < last) {
            const int32_t middle = (first + last + 1) / 2;
            if (x[d] < plan->cuts[d][middle]) {
                last = middle - 1;
            } else {
                first = middle;
            }
        }
        coord[d] = first;
    }
    return 1;
}

DPAR_API int32_t dpar_particles_owner(const dpar_particles *particles, const double *position)
{
    const dpari_particles *plan = (const dpari_particles *)(const void *)particles;
    double x[DPAR_PARTICLES_MAX_DIMS];
    int32_t coord[DPAR_PARTICLES_MAX_DIMS], d;
    if (!particles || !position) {
        return -1;
    }
    for (d = 0; d < particles->dims; d++) {
        x[d] = position[d];
    }
    return dpari_pp_locate(plan, x, 0, coord) ? dpari_pp_rank(plan, coord) : -1;
}

/* ---- directions ------------------------------------------------------------------------------ */

/* Returns the rank in a direction, or -1 if a wall is there, and sets direction->shift. */
static int32_t dpari_pp_rank_towards(const dpari_particles *plan, dpari_pp_direction *direction)
{
    int32_t coord[DPAR_PARTICLES_MAX_DIMS], d;
    for (d = 0; d < plan->head.dims; d++) {
        const int32_t parts = plan->head.parts[d], at = plan->head.coord[d] + direction->step[d];
        const double length = plan->high[d] - plan->low[d];
        if ((at < 0 || at >= parts) && !plan->periodic[d]) {
            return -1;
        }
        coord[d] = at;
        direction->shift[d] = 0.0;
        if (at < 0) { /* its particles, at the high end, are shifted to below the low end */
            coord[d] = parts - 1;
            direction->shift[d] = -length;
        } else if (at >= parts) {
            coord[d] = 0;
            direction->shift[d] = length;
        }
    }
    return dpari_pp_rank(plan, coord);
}

/* Sets the neighbours in all directions; in the middle one it is this rank. Lists their ranks in
 * rank[], each once, in ascending order, and returns their number. */
static int32_t dpari_pp_set_directions(dpari_particles *plan, int32_t *rank)
{
    int32_t of[DPARI_PP_DIRECTIONS], n = 0, c, d, i;
    for (c = 0; c < plan->directions; c++) {
        dpari_pp_direction *direction = &plan->direction[c];
        int32_t rest = c;
        for (d = plan->head.dims - 1; d >= 0; d--) {
            direction->step[d] = rest % 3 - 1;
            rest /= 3;
        }
        of[c] = dpari_pp_rank_towards(plan, direction);
        for (i = 0; i < n && rank[i] < of[c]; i++) {
        }
        if (of[c] < 0 || (i < n && rank[i] == of[c])) {
            continue;
        }
        for (d = n++; d > i; d--) {
            rank[d] = rank[d - 1];
        }
        rank[i] = of[c];
    }
    for (c = 0; c < plan->directions; c++) {
        plan->direction[c].peer = -1;
        for (i = 0; i < n; i++) {
            if (rank[i] == of[c]) {
                plan->direction[c].peer = i;
            }
        }
    }
    return n;
}

/* True if particles are sent in direction c as ghosts. The receiver sees this rank in the opposite
 * direction, which is in the upper half of the codes if c is in the lower half. */
static int dpari_pp_is_target(const dpari_particles *plan, int32_t c)
{
    const int32_t middle = plan->directions / 2;
    return c != middle && plan->direction[c].peer >= 0 && (!plan->half || c < middle);
}

/* Lists the directions in which a particle is sent, for each set of faces that it may be near. */
static void dpari_pp_set_targets(dpari_particles *plan)
{
    int32_t mask, c, d;
    for (mask = 0; mask < DPARI_PP_MASKS; mask++) {
        for (c = 0; c < plan->directions; c++) {
            int adjacent = dpari_pp_is_target(plan, c);
            for (d = 0; d < plan->head.dims; d++) {
                const int32_t step = plan->direction[c].step[d];
                adjacent = adjacent && (step == 0 || (mask >> (2 * d + (step > 0)) & 1) != 0);
            }
            if (adjacent) {
                plan->target[mask][plan->targets[mask]++] = (int8_t)c;
            }
        }
    }
}

/* ---- fields ---------------------------------------------------------------------------------- */

DPARI_INTERNAL dpar_status dpari_pp_grow(const dpari_particles *plan, dpari_pp_list *list,
                                         int64_t need, int64_t keep, dpar_why *why)
{
    const int64_t room = need + need / 2 + 64;
    int32_t *at;
    int64_t i;
    if (list->room >= need) {
        return DPAR_OK;
    }
    at = (int32_t *)dpari_object_alloc(plan->head.comm, (int64_t)sizeof *at * room);
    if (!at) {
        return dpari_say(DPAR_E_MEMORY, why, "particles: no memory for a list of %ld numbers",
                         room);
    }
    for (i = 0; i < keep; i++) {
        at[i] = list->at[i];
    }
    dpari_object_release(list->at);
    list->at = at;
    list->room = room;
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_pp_set_fields(dpari_particles *plan, const char *caller,
                                               const dpar_particles_field *fields, int32_t n,
                                               dpar_why *why)
{
    int32_t i;
    if (n < 1 || n > DPARI_PP_FIELDS || !fields) {
        return dpari_wrong(why, "%s: %d fields (0 if fields is NULL), but 1 to %d are allowed",
                           caller, fields ? n : 0, (int32_t)DPARI_PP_FIELDS);
    }
    for (i = 0; i < n; i++) {
        dpari_pp_field *field = &plan->field[i];
        const int64_t bytes = dpar_type_bytes(fields[i].type);
        field->type = fields[i].type;
        field->numbers = fields[i].components > 0 ? fields[i].components : 1;
        field->size = bytes * field->numbers;
        field->stride = fields[i].stride > 0 ? fields[i].stride : field->size;
        field->at = (unsigned char *)fields[i].data;
        field->is_position = fields[i].is_position;
        if (bytes == 0 || fields[i].components < 0 || fields[i].components > 1 << 20) {
            return dpari_wrong(why,
                               "%s: field %d has %d components of type %s, but 0 to 2^20 of a type "
                               "with bytes are allowed",
                               caller, i, fields[i].components, dpar_type_name(fields[i].type));
        }
        if (fields[i].stride < 0 || fields[i].stride > INT64_C(1) << 30 ||
            field->stride < field->size) {
            return dpari_wrong(why,
                               "%s: field %d has %ld bytes per particle and stride %ld, which must "
                               "be 0, or at least the bytes and at most 2^30",
                               caller, i, field->size, fields[i].stride);
        }
    }
    return DPAR_OK;
}

/* Finds the field that contains the positions. */
static dpar_status dpari_pp_set_position(const dpari_particles *plan, const char *caller,
                                         const dpar_particles_arrays *arrays,
                                         dpari_pp_position *position, dpar_why *why)
{
    const dpar_particles_field *given = &arrays->position;
    const int64_t bytes = dpar_type_bytes(given->type);
    const int32_t numbers = given->components > 0 ? given->components : 1;
    const int64_t stride = given->stride > 0 ? given->stride : bytes * numbers;
    const int32_t last = arrays->ghost_fields > 0 ? arrays->ghost_fields : arrays->field_count;
    int32_t i;
    if ((given->type != DPAR_F64 && given->type != DPAR_F32) || numbers < plan->head.dims ||
        given->stride < 0) {
        return dpari_wrong(why,
                           "%s: positions have %d components of type %s and stride %ld, but %d or "
                           "more of f64 or f32, and no negative stride, are needed",
                           caller, numbers, dpar_type_name(given->type), given->stride,
                           plan->head.dims);
    }
    position->at = (const unsigned char *)given->data;
    position->stride = stride;
    position->single = given->type == DPAR_F32;
    for (i = 0; i < last; i++) {
        const dpari_pp_field *field = &plan->field[i];
        const int64_t offset = (int64_t)((uintptr_t)given->data - (uintptr_t)field->at);
        if (field->stride == stride && offset >= 0 && offset + bytes * numbers <= field->size) {
            position->field = i;
            position->offset = offset;
            return DPAR_OK;
        }
    }
    return dpari_wrong(why,
                       "%s: the positions are in none of the %d fields that move (or that ghosts "
                       "get); add their array to these, with the same stride",
                       caller, last);
}

DPARI_INTERNAL dpar_status dpari_pp_set_arrays(dpari_particles *plan, const char *caller,
                                               const dpar_particles_arrays *arrays,
                                               dpari_pp_position *position, dpar_why *why)
{
    dpar_status status;
    int32_t i;
    if (!arrays) {
        return dpari_wrong(why, "%s: arrays is NULL", caller);
    }
    if (arrays->count < 0 || arrays->capacity < arrays->count || arrays->capacity > INT32_MAX) {
        return dpari_wrong(why,
                           "%s: %ld particles in a capacity of %ld, but count must be 0 to the "
                           "capacity, and the capacity at most 2^31 - 1",
                           caller, arrays->count, arrays->capacity);
    }
    status = dpari_pp_set_fields(plan, caller, arrays->fields, arrays->field_count, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (arrays->ghost_fields < 0 || arrays->ghost_fields > arrays->field_count) {
        return dpari_wrong(why, "%s: ghost_fields is %d, but must be 0 to %d", caller,
                           arrays->ghost_fields, arrays->field_count);
    }
    for (i = 0; i < arrays->field_count; i++) {
        if (!plan->field[i].at && arrays->capacity > 0) {
            return dpari_wrong(why, "%s: field %d is NULL, but the capacity is %ld", caller, i,
                               arrays->capacity);
        }
    }
    return dpari_pp_set_position(plan, caller, arrays, position, why);
}

DPARI_INTERNAL uint64_t dpari_pp_hash(const dpari_particles *plan, int32_t kind, int32_t n)
{
    uint64_t hash = dpari_hash(0, kind);
    int32_t i;
    for (i = 0; i < n; i++) {
        hash = dpari_hash(hash, plan->field[i].size);
    }
    return hash << 2; /* the lowest two bits hold the operation, DPARI_EXCHANGE_OP */
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Allocates a plan with its cuts, and sets the fields that do not depend on other ranks. */
static dpar_status dpari_pp_build(dpar_comm *comm, const dpar_particles_desc *desc,
                                  const int32_t *parts, dpari_particles **made, dpar_why *why)
{
    dpari_particles *plan = (dpari_particles *)dpari_object_alloc(comm, (int64_t)sizeof *plan);
    int64_t all = 0;
    int32_t d;
    *made = plan;
    if (!plan) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_particles_make: no memory");
    }
    for (d = 0; d < desc->dims; d++) {
        all += parts[d] + 1;
    }
    plan->memory = dpari_object_alloc(comm, (int64_t)sizeof(double) * all);
    if (!plan->memory) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_particles_make: no memory for %ld cuts", all);
    }
    plan->head.comm = comm;
    plan->head.dims = desc->dims;
    plan->order = desc->order;
    plan->half = desc->half;
    plan->cutoff = desc->cutoff;
    plan->directions = 1;
    all = 0;
    for (d = 0; d < desc->dims; d++) {
        plan->head.parts[d] = parts[d];
        plan->periodic[d] = desc->periodic[d];
        plan->low[d] = desc->low[d];
        plan->high[d] = desc->high[d];
        plan->cuts[d] = (double *)plan->memory + all;
        plan->directions *= 3;
        all += parts[d] + 1;
    }
    dpari_pp_set_coord(plan);
    for (d = 0; d < desc->dims; d++) {
        const dpar_status status = dpari_pp_cut(plan, desc, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_pp_release(dpari_particles *plan)
{
    if (plan) {
        dpari_object_release(plan->sent.at);
        dpari_object_release(plan->border.at);
        dpari_object_release(plan->owner.at);
        dpari_object_release(plan->memory);
        dpari_object_release(plan);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_particles_make(dpar_comm *comm,
                                                    const dpar_particles_desc *desc,
                                                    dpar_particles **particles, dpar_why *why)
{
    int32_t parts[DPAR_PARTICLES_MAX_DIMS], rank[DPARI_PP_DIRECTIONS];
    dpar_neighbours_desc neighbours;
    dpari_particles *plan = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_particles_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_pp_check(comm, particles ? desc : NULL, why);
    if (status == DPAR_OK) {
        status = dpari_pp_choose(comm, desc, parts, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pp_build(comm, desc, parts, &plan, why);
    }
    status = dpari_agree_on(comm, status, "particles", dpari_pp_state, desc, why);
    if (status == DPAR_OK) {
        dpari_zero(&neighbours, sizeof neighbours);
        neighbours.count = dpari_pp_set_directions(plan, rank);
        neighbours.rank = rank;
        neighbours.tag = desc->tag;
        dpari_pp_set_targets(plan);
        status = dpar_neighbours_make(comm, &neighbours, &plan->neighbours, why);
    }
    if (status != DPAR_OK) {
        dpari_pp_release(plan);
        return status;
    }
    *particles = &plan->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_particles_free(dpar_particles *particles)
{
    dpari_particles *plan = dpari_pp_of(particles);
    dpar_comm *comm;
    dpar_status status;
    if (!particles) {
        return DPAR_OK;
    }
    comm = particles->comm;
    status = dpar_neighbours_free(plan->neighbours);
    if (dpari_object_refused(comm, status)) {
        return status;
    }
    dpari_pp_release(plan);
    return status;
}

/* ==== particles/particles_migrate.c ==== */

/* Sends particles to the ranks that own their positions.
 *
 * Each rank lists the particles that leave its block. A particle that leaves is packed as a row:
 * its fields, one after the other. Rows for neighbours are sent to them. A rank is its own
 * neighbour too, for particles that leave the box at a periodic end and are moved back into the
 * same block. An all-reduce then finds out whether some rank has failed or has particles that go
 * further. Those are sent in an all-to-all. Nothing is written to the caller's arrays before all
 * ranks know that everything has arrived and that no capacity is too small. */

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

/* ==== particles/particles_ghosts.c ==== */

/* Finds ghosts, updates them, and adds their values to those of the particles that they copy.
 *
 * For each direction in which there is a neighbour, a rank lists the own particles that are near
 * the faces on that side. It sends them directly to the rank in that direction. Several directions
 * may lead to the same rank, or back to this one. The receiver sees the sender in the opposite
 * direction. The lists for one neighbour are adjacent, so that each call packs one message for it,
 * with one block of values per field. Ghosts of this rank's own particles need no message. */

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

#endif /* DPAR_PARTICLES_IMPLEMENTATION */
