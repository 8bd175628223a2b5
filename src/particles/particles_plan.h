/* SPDX-License-Identifier: MIT-0 */
/* particles_plan - the data of distributed particles, and what their modules share. Private.
 *
 * A direction is a step of -1, 0 or 1 blocks in each dim. Its code is a number in base 3, whose
 * digits are the steps + 1, that of dim 0 first. The opposite direction therefore has the code
 * `directions - 1 - code`. */
#ifndef DPARI_PARTICLES_PARTICLES_PLAN_H
#define DPARI_PARTICLES_PARTICLES_PLAN_H

#include "../base/arith.h"
#include "../host/elements.h"
#include "neighbours.h"
#include "particles.h"

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

#endif
