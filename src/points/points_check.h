/* SPDX-License-Identifier: MIT-0 */
/* points_check - checks whether exchanges of points brought the right values, for tests and for
 * codes that may have forgotten an exchange.
 *
 *     dpar_points_check(points, fields, count, DPAR_POINTS_POISON, &why);     sets ghosts to NaN
 *     dpar_points_exchange_many(points, fields, count);
 *     dpar_points_check(points, fields, count, DPAR_POINTS_UNFILLED, &why);   fails if one is left
 *     ... steps ...
 *     dpar_points_check(points, fields, count, DPAR_POINTS_STALE, &why);      fails if one is old
 */
#ifndef DPARI_POINTS_POINTS_CHECK_H
#define DPARI_POINTS_POINTS_CHECK_H

#include "points.h"

/* What to check. 0 is not allowed. */
enum {
    /* Checks nothing, but sets all ghosts to NaN (integers: all bits 1). Local. */
    DPAR_POINTS_POISON = 1,
    /* Finds a ghost that still has that value, in vectors whose own values do not have it. Returns
     * DPAR_E_ARG with vector, index and rank. Local. */
    DPAR_POINTS_UNFILLED,
    /* Finds a ghost that differs from its owner's value in any bit. Returns DPAR_E_MISMATCH on all
     * ranks with the first one: vector, index, both ranks. Changes nothing. Collective: it
     * exchanges into a copy of the ghosts (dpar_comm_alloc). */
    DPAR_POINTS_STALE
};
/* Checks vectors between exchanges. Returns DPAR_OK if nothing was found, or the error that the
 * enumerator documents. Fails with DPAR_E_ARG if vectors are described wrongly, for STALE on all
 * ranks; otherwise as the communicator. Costs O(values). */
DPAR_API dpar_status dpar_points_check(dpar_points *points, const dpar_points_field *fields,
                                       int32_t count, int32_t what, dpar_why *why);

#endif
