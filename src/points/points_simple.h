/* SPDX-License-Identifier: MIT-0 */
/* points_simple - makes plans of points that allocate their own memory, for codes that have arrays
 * and ids of their own:
 *
 *     dpar_points_make(comm, own, n, ghosts, m, &p, &why);     ids that this rank owns, and reads
 *     dpar_points_to_local(p, column_id, entries, column);   columns of the matrix, as local
 * indices
 *     ...
 *     dpar_points_exchange(p, x);                              x[n .. n + m - 1] are the owners'
 *     ...
 *     dpar_points_free(p);
 *
 * If elements add to points that other ranks own, dpar_points_reduce(p, b) adds the ghosts of b to
 * their owners' values. All functions of points.h accept such a plan, too. Functions without a
 * `why` leave their message in p->comm->why. */
#ifndef DPARI_POINTS_POINTS_SIMPLE_H
#define DPARI_POINTS_POINTS_SIMPLE_H

#include "points.h"

/* Makes a plan from n own ids and m ghost ids, in the order in which they are given. It is
 * dpar_points_init with memory of dpar_comm_alloc.
 *
 * own:    [n]; NULL on all ranks selects consecutive ids from 0, rank after rank.
 * ghosts: [m].
 *
 * Collective. Errors and cost are those of dpar_points_init. */
DPAR_API dpar_status dpar_points_make(dpar_comm *comm, const int64_t *own, int64_t n,
                                      const int64_t *ghosts, int64_t m, dpar_points **plan,
                                      dpar_why *why);
/* Makes a plan from a description, which may have another order, owners, or lists. Otherwise as
 * dpar_points_make. */
DPAR_API dpar_status dpar_points_make_of(dpar_comm *comm, const dpar_points_desc *d,
                                         dpar_points **plan, dpar_why *why);
/* Allocates a zeroed vector for own values and ghosts, in registered memory that peers read
 * directly. Returns NULL on failure, with the message in c->why. The vector can be used until
 * dpar_comm_release or the end of the communicator's world. Not collective. */
DPAR_API void *dpar_points_array(dpar_points *p, int32_t type, int32_t components);
/* Copies owners' values to the ghosts of x.
 *
 * x: [own + ghosts], in any memory. For other types use dpar_points_exchange_many.
 *
 * Collective. Errors and cost are those of dpar_points_exchange_many. */
DPAR_API dpar_status dpar_points_exchange(dpar_points *p, double *x);
/* Adds the ghosts of x to their owners' values; the ghosts become 0. Collective. Errors, cost and
 * the order of sums are those of dpar_points_reduce_begin. */
DPAR_API dpar_status dpar_points_reduce(dpar_points *p, double *x);
/* Destroys a plan of dpar_points_make or dpar_points_make_of. NULL does nothing. Collective. Errors
 * are those of dpar_points_close. */
DPAR_API dpar_status dpar_points_free(dpar_points *p);

#endif
