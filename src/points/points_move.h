/* SPDX-License-Identifier: MIT-0 */
/* points_move - moves a mesh to new owners: points with their ids, elements with the ids of their
 * corners, and any values of both.
 *
 *     dpar_points_migration_desc d = {0};
 *     d.points = n;
 *     d.id = id;
 *     d.elements = m;
 *     d.corners = 4;
 *     d.corner = corner;                           ids of 4 points each
 *     d.element_owner = owner;                     of dpar_points_partition, METIS, Scotch, yours
 *     dpar_points_migration_make(c, &d, &to, &why);          each point moves with an element that
 * has it v.type = DPAR_F64; v.components = 3; v.data = xyz;                                [n][3]
 * the old values v.ghosts = xyz_new;                          [to->desc.own][3]
 *     dpar_points_exchange_many(to->points, &v, 1);          values move, any number of times
 *     dpar_points_make_of(c, &to->desc, &p, &why); a plan for the exchanges from now on
 *     ... to->corner[4 * e + k]: local indices ...
 *
 * A movement is a plan of points.h, whose own values are the old ones and whose ghosts are the new
 * ones. It can do all that such a plan can: move several vectors of any type in one message per
 * peer. To move values back, set the old array to 0 and call dpar_points_reduce_begin with
 * DPAR_SUM and dpar_points_end. */
#ifndef DPARI_POINTS_POINTS_MOVE_H
#define DPARI_POINTS_POINTS_MOVE_H

#include "points.h"

/* This rank's piece of a mesh, and its new owners. Zero it, then set the fields that you need. All
 * ranks give owner, or all give element_owner, or both; a rank without points may leave owner out.
 */
typedef struct dpar_points_migration_desc {
    int64_t points;       /* number of points of this rank */
    const int64_t *id;    /* [points] each once in the job. NULL on all ranks selects consecutive
                             ids from 0, rank after rank */
    const int32_t *owner; /* [points] the new owner of each. If NULL, a point is given to one of the
                             ranks that get an element with it; without an element it stays */
    const int64_t *order; /* [points] sorts the points of each new owner, ascending; ties are sorted
                             by id. NULL sorts by id */
    int64_t elements;     /* number of elements of this rank */
    int32_t corners;      /* corners of each element, 1 to 64, the same on all ranks with elements.
                             For mixed shapes it is the largest number; repeat the last corner */
    const int64_t *corner;        /* [elements][corners] ids of points, which any rank may have */
    const int64_t *element_id;    /* [elements] like id */
    const int32_t *element_owner; /* [elements] like owner. If NULL, an element is given to the rank
                                     that gets most of its corners, the smallest such rank */
    const int64_t *element_order; /* [elements] like order */
} dpar_points_migration_desc;

/* What this rank has after the movement. You may change way, tag and timers of desc. If you change
 * its order from GIVEN, the indices in `corner` no longer apply. All arrays belong to this struct.
 */
typedef struct dpar_points_migration {
    dpar_points_desc
        desc; /* the rank's points, with those that its elements read as ghosts: by
                 owner's rank, then by id, with their owners. For dpar_points_make_of */
    int64_t elements;
    int64_t *element_id;      /* [elements] */
    int32_t *corner;          /* [elements][corners] local indices: own points, then ghosts */
    dpar_points *points;      /* plan from old points (own values) to new points (ghosts) */
    dpar_points *of_elements; /* the same for elements; NULL if no rank has any */
    dpar_comm *comm;          /* private, as are all fields that follow */
    void *memory[3];
} dpar_points_migration;

/* Plans the movement of a mesh, moves ids and corners, and converts the corners to local indices.
 * The plans in `moved` then move values.
 *
 * moved: free it with dpar_points_migration_free.
 *
 * The result depends on ids, corners, owners and orders only, not on how points and elements were
 * distributed before, except for points without elements, which stay. If several ranks could get a
 * point, a hash of rank and id selects one, so that no rank gets all of them.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if an owner is no rank,
 * an id is on two ranks or none, neither owner nor element_owner is given, or a pointer is NULL.
 * Fails with DPAR_E_MISMATCH if some ranks give what others do not, or another number of corners;
 * with DPAR_E_RANGE, DPAR_E_MEMORY, or as the communicator.
 *
 * Costs sorting what the rank has and gets, O(n), and about 12 all-to-alls. Needs 80 bytes per
 * corner and per point during the call. Keeps 4 bytes per corner, 12 per ghost, 8 per id, and the
 * two plans. */
DPAR_API dpar_status dpar_points_migration_make(dpar_comm *c, const dpar_points_migration_desc *d,
                                                dpar_points_migration **moved, dpar_why *why);
/* Destroys the result of a movement: its plans, then its arrays. Plans that were made from its desc
 * do not need it. NULL does nothing. Collective. Errors are those of dpar_points_close. */
DPAR_API dpar_status dpar_points_migration_free(dpar_points_migration *moved);

#endif
