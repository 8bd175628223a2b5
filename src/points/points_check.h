/* SPDX-License-Identifier: MIT-0 */
/* points_check - checks whether ghosts have their owners' values, for tests and for codes that may
 * have forgotten an exchange.
 *
 *     dpar_points_check(points, fields, count, DPAR_POINTS_POISON, &why);     sets ghosts to NaN
 *     dpar_points_exchange_many(points, fields, count);
 *     dpar_points_check(points, fields, count, DPAR_POINTS_UNFILLED, &why);   fails if any is NaN
 *     ... steps ...
 *     dpar_points_check(points, fields, count, DPAR_POINTS_STALE, &why);      fails if any is old
 */
#ifndef DPARI_POINTS_POINTS_CHECK_H
#define DPARI_POINTS_POINTS_CHECK_H

#include "points.h"

/* The checks of dpar_points_check. 0 is not allowed. */
enum {
    /* Checks nothing, but sets all ghosts to NaN (integers to all bits 1), except for those that no
     * rank sends. Local. */
    DPAR_POINTS_POISON = 1,
    /* Finds a ghost that still has the value set by DPAR_POINTS_POISON. Vectors in which own values
     * have it too are not checked. Returns DPAR_E_ARG, and the message names vector, index and
     * rank. Local. */
    DPAR_POINTS_UNFILLED,
    /* Finds a ghost that differs from its owner's value in any bit. Returns DPAR_E_MISMATCH on all
     * ranks, and the message names vector, index and rank of the first such ghost. Changes nothing.
     * Collective, because it exchanges into a copy of the ghosts (dpar_comm_alloc). */
    DPAR_POINTS_STALE
};
/* Checks vectors between exchanges. Returns DPAR_OK if no wrong ghost was found, or the error that
 * the enumerator documents. Also fails with DPAR_E_ARG if vectors are described wrongly (with STALE
 * on all ranks), or with an error of the communicator. Costs O(values). */
DPAR_API dpar_status dpar_points_check(dpar_points *points, const dpar_points_field *fields,
                                       int32_t count, int32_t what, dpar_why *why);

#endif
