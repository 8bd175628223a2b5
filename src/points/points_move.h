/* SPDX-License-Identifier: MIT-0 */
/* points_move - a mesh goes to new owners: points with their ids, elements with the ids of their
 * corners, and any values of both.
 *
 *     dpar_points_migration_desc d = {0};
 *     d.points = n, d.id = id;
 *     d.elements = m, d.corners = 4, d.corner = corner;          ids of 4 points each
 *     d.element_owner = owner;                     of dpar_points_partition, METIS, Scotch, yours
 *     bad = dpar_points_migration_make(c, &d, &to, &why);    points go with elements that have them
 *     v.type = DPAR_F64, v.components = 3;
 *     v.data = xyz;                                [n][3] as they lay
 *     v.ghosts = xyz_new;                          [to->desc.own][3]
 *     bad = bad || dpar_points_exchange_many(to->points, &v, 1);           values move, any number
 * of times bad = bad || dpar_points_make_of(c, &to->desc, &p, &why);  exchanges from now on
 *     ... to->corner[4 * e + k]: local indices ...
 *
 * A movement is a plan of points.h: its own values are the old ones, its ghosts the new ones. All
 * that such a plan can do it can: several vectors in one message a peer, of any type. Back: begin
 * with 0 in the old array, dpar_points_reduce_begin with DPAR_SUM, dpar_points_end. */
#ifndef DPARI_POINTS_POINTS_MOVE_H
#define DPARI_POINTS_POINTS_MOVE_H

#include "points.h"

/* What this rank has of a mesh, and whose it is to be. Zero it and fill it in. One of owner and
 * element_owner is given on all ranks, or both; ranks without points may leave owner out. */
typedef struct dpar_points_migration_desc {
    int64_t points;        /* of this rank */
    const int64_t *id;     /* [points] each once in the job. NULL on all ranks: consecutive, rank
                              after rank, from 0 */
    const int32_t *owner;  /* [points] the rank that is to have it. NULL: one of those that are to
                              have an element with it; without an element it stays */
    const int64_t *order;  /* [points] at its new rank they lie in ascending order of these, where
                              equal of their ids. NULL: of ids */
    int64_t elements;      /* of this rank */
    int32_t corners;       /* of each element, 1 to 64, the same on all ranks with elements. Of
                              mixed shapes: the most; repeat the last corner */
    const int64_t *corner; /* [elements][corners] ids of points, of any rank */
    const int64_t *element_id;    /* [elements] as id */
    const int32_t *element_owner; /* [elements] as owner. NULL: the rank that is to have most of its
                                     corners; of several the smallest */
    const int64_t *element_order; /* [elements] as order */
} dpar_points_migration_desc;

/* What this rank has after the movement. Read it; change desc as you like (its way, tag, timers;
 * with another order than GIVEN `corner` counts otherwise). All arrays are its own. */
typedef struct dpar_points_migration {
    dpar_points_desc desc; /* its points, and as ghosts those that its elements read: by owner's
                              rank, then id, with the owners. For dpar_points_make_of */
    int64_t elements;
    int64_t *element_id;      /* [elements] */
    int32_t *corner;          /* [elements][corners] local indices: own points, then ghosts */
    dpar_points *points;      /* plan: old points are its own values, new ones its ghosts */
    dpar_points *of_elements; /* the same of elements; NULL where no rank has any */
    dpar_comm *comm;          /* private, as all that follows */
    void *memory[3];
} dpar_points_migration;

/* Plans the movement of a mesh, moves ids and corners, numbers the corners anew. Values are moved
 * by the plans in `moved`. COLLECTIVE.
 *
 * The result depends on ids, corners, owners and orders, not on how points and elements were spread
 * before (but for points without elements that stay). Of several ranks that may have a point, a
 * hash of rank and id takes one: no rank gets all of them.
 *
 * What any rank gives wrongly all ranks hear, with a sentence. E_ARG: a rank that is none, an id
 * that two ranks have or none, neither owner nor element_owner, NULL; E_MISMATCH: some ranks give
 * what others do not, or other corners. E_RANGE, E_MEMORY, and errors of the communicator.
 *
 * Costs sorting what it has and gets, O(n), and about 12 all-to-alls; 80 bytes a corner and a point
 * for a while. What is kept: 4 bytes a corner, 12 a ghost, 8 an id, and the two plans. */
DPAR_API dpar_status dpar_points_migration_make(dpar_comm *c, const dpar_points_migration_desc *d,
                                                dpar_points_migration **moved, dpar_why *why);
/* Ends it: the plans, then its arrays, which plans made of its desc no longer need. COLLECTIVE;
 * errors as dpar_points_close. NULL is fine. */
DPAR_API dpar_status dpar_points_migration_free(dpar_points_migration *moved);

#endif
