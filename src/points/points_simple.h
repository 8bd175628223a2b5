/* SPDX-License-Identifier: MIT-0 */
/* points_simple - points in few lines, with memory of their own. In a code that has its own arrays
 * and ids it comes to this:
 *
 *     dpar_points_make(comm, own, n, ghosts, m, &p, &why);     ids that this rank owns, and reads
 *     dpar_points_to_local(p, column_id, entries, column);   columns of the matrix, as local
 * indices
 *     ...
 *     dpar_points_exchange(p, x);                              x[n .. n + m - 1] are the owners'
 *     ...
 *     dpar_points_free(p);
 *
 * Elements that add to points of others: dpar_points_reduce(p, b) adds what lies in the ghosts of b
 * to their owners. All that points.h has takes such a plan, too. What has no `why` leaves its
 * sentence in p->comm->why. */
#ifndef DPARI_POINTS_POINTS_SIMPLE_H
#define DPARI_POINTS_POINTS_SIMPLE_H

#include "points.h"

/* Plans for n own ids and m ghost ids, in the order in which they are given: dpar_points_init with
 * memory of dpar_comm_alloc. own NULL on all ranks: ids are consecutive, rank after rank from 0.
 * COLLECTIVE. Errors and cost as dpar_points_init. */
DPAR_API dpar_status dpar_points_make(dpar_comm *comm, const int64_t *own, int64_t n,
                                      const int64_t *ghosts, int64_t m, dpar_points **plan,
                                      dpar_why *why);
/* The same of a description: order, owners, lists. */
DPAR_API dpar_status dpar_points_make_of(dpar_comm *comm, const dpar_points_desc *d,
                                         dpar_points **plan, dpar_why *why);
/* A zeroed vector for own values and ghosts, of memory that peers read directly; until
 * dpar_comm_release or the end of the communicator's world. NULL: c->why has the sentence. Not
 * collective. */
DPAR_API void *dpar_points_array(dpar_points *p, int32_t type, int32_t components);
/* Ghosts of x get what their owners have: own + ghosts doubles, of any memory. (Other types:
 * dpar_points_exchange_many.) COLLECTIVE. Errors and cost as dpar_points_exchange_many. */
DPAR_API dpar_status dpar_points_exchange(dpar_points *p, double *x);
/* The owners' values of x become the sums of themselves and all ghosts, which become 0. COLLECTIVE.
 * Errors, cost and order of the sums as dpar_points_reduce_begin. */
DPAR_API dpar_status dpar_points_reduce(dpar_points *p, double *x);
/* Ends a plan of make or make_of. COLLECTIVE; errors as dpar_points_close. NULL is fine. */
DPAR_API dpar_status dpar_points_free(dpar_points *p);

#endif
