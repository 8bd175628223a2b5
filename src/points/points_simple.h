/* SPDX-License-Identifier: MIT-0 */
/* points_simple - allocates and exchanges one vector, for codes that need no more:
 *
 *     dpar_points_make(comm, &desc, &points, &why);
 *     dpar_points_to_local(points, column_id, entries, column);    local columns of the matrix
 *     x = dpar_points_array(points, DPAR_F64, 1);
 *     ...
 *     dpar_points_exchange(points, x);        the ghosts of x become their owners' values
 *     ...
 *     dpar_points_free(points);
 *
 * If elements add to points that other ranks own, dpar_points_reduce(points, b) adds the ghosts of
 * b to their owners' values. The messages of these functions are in points->comm->why. */
#ifndef DPARI_POINTS_POINTS_SIMPLE_H
#define DPARI_POINTS_POINTS_SIMPLE_H

#include "points.h"

/* Allocates a zeroed vector for own values and ghosts, in registered memory that peers read in
 * place. Returns NULL on failure, with the message in points->comm->why. The vector can be used
 * until dpar_comm_release or until the communicator's world is closed. Local. Costs O(values). */
DPAR_API void *dpar_points_array(dpar_points *points, int32_t type, int32_t components);
/* Copies owners' values to the ghosts of x.
 *
 * x: [own_count + ghost_count], in any memory. For other types use dpar_points_exchange_many.
 *
 * Collective. Errors and cost are those of dpar_points_exchange_many. */
DPAR_API dpar_status dpar_points_exchange(dpar_points *points, double *x);
/* Adds the ghosts of x to their owners' values, and sets the ghosts to 0. Collective. Errors, cost
 * and the order of sums are those of dpar_points_reduce_begin_many. */
DPAR_API dpar_status dpar_points_reduce(dpar_points *points, double *x);
/* Adds the values of x that have the same id, on all ranks, and stores each sum at all of them, for
 * plans of shared ids (desc.shared).
 *
 * x: [own_count], in any memory. For other types and operations use dpar_points_combine_many.
 *
 * Collective. Errors, cost and the order of sums are those of dpar_points_combine_begin_many. */
DPAR_API dpar_status dpar_points_combine(dpar_points *points, double *x);
/* Starts dpar_points_exchange, which dpar_points_end completes, so that you can compute meanwhile.
 * Until then own values may be read but not written, and ghosts must be neither read nor written.
 * Collective. Errors and cost are those of dpar_points_begin_many. */
DPAR_API dpar_status dpar_points_begin(dpar_points *points, double *x);
/* Starts dpar_points_reduce, which dpar_points_end completes. Until then x must be neither read nor
 * written. Collective. Errors and cost are those of dpar_points_reduce_begin_many. */
DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *points, double *x);
/* Starts dpar_points_combine, which dpar_points_end completes. Until then x must be neither read
 * nor written. Collective. Errors and cost are those of dpar_points_combine_begin_many. */
DPAR_API dpar_status dpar_points_combine_begin(dpar_points *points, double *x);

#endif
