/* SPDX-License-Identifier: MIT-0 */
/* points_move - moves a mesh to new owners: points with their ids, elements with the ids of their
 * corners, and any values of both.
 *
 *     dpar_points_migration_desc desc = {0};
 *     desc.point_count = n;
 *     desc.id = id;
 *     desc.element_count = m;
 *     desc.corner_count = 4;
 *     desc.corner = corner;                        [m][4] ids of points
 *     desc.element_owner = owner;                  from dpar_points_partition, METIS, Scotch, ...
 *     dpar_points_migration_make(comm, &desc, &moved, &why);
 *     field.type = DPAR_F64;
 *     field.components = 3;
 *     field.data = xyz;                            [n][3], the old values
 *     field.ghosts = xyz_new;                      [moved->desc.own_count][3]
 *     dpar_points_exchange_many(moved->points, &field, 1);   moves values, any number of times
 *     dpar_points_make(comm, &moved->desc, &points, &why);   for the exchanges from now on
 *     ... moved->corner[4 * e + k]: local indices ...
 *
 * Each point moves to a rank that gets an element with this point.
 *
 * moved->points is a plan of points.h whose own values are the old values and whose ghosts are the
 * new ones. Like any such plan it can move several vectors of any type in one message per peer. To
 * move values back, set the old array to 0 and call dpar_points_reduce_many with DPAR_SUM. */
#ifndef DPARI_POINTS_POINTS_MOVE_H
#define DPARI_POINTS_POINTS_MOVE_H

#include "points.h"

/* This rank's piece of a mesh, and its new owners. Zero it, then set the fields that you need. All
 * ranks must pass owner, or all must pass element_owner, or both. A rank without points may leave
 * out owner. */
typedef struct dpar_points_migration_desc {
    int64_t point_count;   /* number of points of this rank */
    const int64_t *id;     /* [point_count] each once in the job. NULL on all ranks selects
                              consecutive ids from 0, rank after rank */
    const int32_t *owner;  /* [point_count] the new owner of each. If NULL, a point moves to one of
                              the ranks that get an element with it; a point without elements
                              stays */
    const int64_t *order;  /* [point_count] sorts the points of each new owner, ascending; ties are
                              sorted by id. NULL sorts by id */
    int64_t element_count; /* number of elements of this rank */
    int32_t corner_count;  /* corners of each element, 1 to 64, the same on all ranks with elements.
                              For mixed shapes it is the largest number; repeat the last corner */
    const int64_t *corner; /* [element_count][corner_count] ids of points, of any rank */
    const int64_t *element_id;    /* [element_count] like id */
    const int32_t *element_owner; /* [element_count] like owner. If NULL, an element moves to the
                                     rank that gets most of its corners, the smallest if several
                                     ranks get as many */
    const int64_t *element_order; /* [element_count] like order */
} dpar_points_migration_desc;

/* The points and elements of this rank after the movement. You may change method, tag, timers,
 * memory and bytes of desc. If you change desc.order, the indices in `corner` are no longer valid.
 * All arrays belong to this struct. */
typedef struct dpar_points_migration {
    dpar_points_desc desc; /* for dpar_points_make. Ghosts are the points of other ranks that the
                              elements of this rank read, sorted by owner, then by id; their owners
                              are in desc.owner */
    int64_t element_count;
    int64_t *element_id;         /* [element_count] */
    int32_t *corner;             /* [element_count][corner_count] local indices: own points, then
                                    ghosts */
    dpar_points *points;         /* plan from old points (own values) to new points (ghosts) */
    dpar_points *element_points; /* the same for elements; NULL if no rank has any */
    dpar_comm *comm;             /* private, as are all fields that follow */
    void *memory[3];
} dpar_points_migration;

/* Plans the movement of a mesh, moves ids and corners, and converts the corners to local indices.
 * The plans in `moved` then move values.
 *
 * moved: free it with dpar_points_migration_free.
 *
 * The result depends only on ids, corners, owners and orders, and not on how points and elements
 * were distributed before, except that points without elements stay where they are. If several
 * ranks could get a point, a hash of rank and id selects one, so that no rank gets all of them.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if an owner is not a
 * rank, an id is on two ranks or none, owner and element_owner are both NULL, or another pointer is
 * NULL. Fails with DPAR_E_MISMATCH if only some ranks pass an optional array, or if ranks pass
 * different numbers of corners; with DPAR_E_RANGE, DPAR_E_MEMORY, or an error of the communicator.
 *
 * Costs sorting the points and elements that the rank has before and after, O(n), and about 12
 * all-to-alls. Temporarily needs 80 bytes per corner and per point. The result takes 4 bytes per
 * corner, 12 per ghost, 8 per id, and the two plans. */
DPAR_API dpar_status dpar_points_migration_make(dpar_comm *comm,
                                                const dpar_points_migration_desc *desc,
                                                dpar_points_migration **moved, dpar_why *why);
/* Destroys the result of a movement: its plans and arrays. Plans that were made from its desc do
 * not need it. NULL does nothing. Collective. Errors are those of dpar_points_free. Costs a barrier
 * per plan. */
DPAR_API dpar_status dpar_points_migration_free(dpar_points_migration *moved);

#endif
