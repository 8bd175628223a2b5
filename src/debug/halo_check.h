/* SPDX-License-Identifier: MIT-0 */
/* halo_check - checks whether an exchange of halos (halo_exchange.h) brought the right values, for
 * tests and for a code that you suspect. A correct code does not need it.
 *
 *     dpar_halo_plan_check(x, DPAR_HALO_POISON, &why);          halos become NaN
 *     dpar_halo_plan_exchange(x);
 *     st = dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why);   none is left
 *     st = dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why);      and each has its owner's value
 *     ... steps ...
 *     st = dpar_halo_plan_check(x, DPAR_HALO_STALE, &why);      no exchange was forgotten */
#ifndef DPARI_DEBUG_HALO_CHECK_H
#define DPARI_DEBUG_HALO_CHECK_H

#include "../base/text.h"
#include "../halo/halo_exchange.h"

/* Kinds of checks. 0 is not one of them. */
enum {
    /* Sets all halo cells that an exchange fills to NaN (integers: 2^n - 1) and looks for nothing.
     * Local. */
    DPAR_HALO_POISON = 1,
    /* Looks for a NaN that is left in a cell that exchanges fill, for fields that have no NaN of
     * their own. It is DPAR_E_ARG with field, cell and rank. Local. */
    DPAR_HALO_UNFILLED,
    /* Looks for a value that an exchange would change, bit for bit: a halo that is stale, or with a
     * plan of shared points a copy that differs from its owner's. It is DPAR_E_MISMATCH on all
     * ranks, with field, point, both ranks and both values of the first one. Halos change during
     * the check and are restored afterwards. Collective. Costs an exchange, and a copy of the halos
     * from dpar_comm_alloc. */
    DPAR_HALO_STALE,
    /* Looks for a halo cell that differs from its owner's, by another method than exchanges use.
     * Rank 0 gathers the own points of each field by plain messages and arranges them as a serial
     * code would. The halos of all ranks are compared with that, cell by cell, with indices by the
     * rules of halo.h and without transfer lists. It is DPAR_E_MISMATCH on all ranks with the first
     * one. Collective. Slow, and allocates memory for the whole grid on rank 0 with
     * dpar_comm_alloc. */
    DPAR_HALO_WRONG
};
/* Checks the fields of a plan between two exchanges. Returns DPAR_OK if nothing was found.
 *
 * what: DPAR_HALO_POISON, ... DPAR_HALO_WRONG. The first two cost O(halo cells).
 *
 * Fails with what the check found, as described there. Fails with DPAR_E_ARG if plan is NULL, there
 * is no such check, or an exchange is under way. Fields in the memory of a device are also
 * DPAR_E_ARG if all halos are sent by messages, because nothing waits for that memory. Other errors
 * are those of the communicator. */
DPAR_API dpar_status dpar_halo_plan_check(dpar_halo_plan *plan, int32_t what, dpar_why *why);

/* Writes a table of what a rank sends to each peer in each exchange; nothing if plan is NULL. Its
 * columns are the peer, `method`, `hops`, pieces (boxes), bytes, bytes that the peer
 * reads directly, and runs of memory. `hops` is the distance in blocks, the largest along any mesh
 * axis, so that it is 1 for a neighbour.
 *
 * With options.timers it adds the times of the phases, in microseconds an exchange. One more line
 * follows for each field that is packed although peers that share memory could read it directly.
 * Such a field is not in memory of dpar_comm_alloc of the plan's communicator, or of one that was
 * split from the same. Local. O(peers x pieces). */
DPAR_API void dpar_halo_plan_report(const dpar_halo_plan *plan, dpar_text *out);

#endif
