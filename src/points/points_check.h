/* SPDX-License-Identifier: MIT-0 */
/* points_check - did an exchange of points bring the right values? For a code that is suspected, or
 * its tests.
 *
 *     dpar_points_check(p, v, n, DPAR_POINTS_POISON, &why);         ghosts are NaN
 *     dpar_points_exchange_many(p, v, n);
 *     st = dpar_points_check(p, v, n, DPAR_POINTS_UNFILLED, &why);  none is left
 *     ... steps ...
 *     st = dpar_points_check(p, v, n, DPAR_POINTS_STALE, &why);     nobody forgot an exchange */
#ifndef DPARI_POINTS_POINTS_CHECK_H
#define DPARI_POINTS_POINTS_CHECK_H

#include "points.h"

/* What to look for. 0 is none of these. */
enum {
    /* Looks for nothing: ghosts become NaN (integers: all bits 1). Local. */
    DPAR_POINTS_POISON = 1,
    /* A ghost that is still so, of vectors whose own values are not. E_ARG with vector, index and
     * rank. Local. */
    DPAR_POINTS_UNFILLED,
    /* A ghost that is not its owner's value, bit for bit. E_MISMATCH on all ranks with the first:
     * vector, index, both ranks. Nothing changes. COLLECTIVE: an exchange into a copy of the ghosts
     * (dpar_comm_alloc). */
    DPAR_POINTS_STALE
};
/* Checks vectors between exchanges. OK: nothing was found. E_ARG: found, as said there; or vectors
 * are named wrongly, which of STALE all ranks hear. Else errors of the communicator. O(values). */
DPAR_API dpar_status dpar_points_check(dpar_points *p, const dpar_points_field *v, int32_t n,
                                       int32_t what, dpar_why *why);

#endif
