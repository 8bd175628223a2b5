/* SPDX-License-Identifier: MIT-0 */
/* halo_check - checks whether a halo exchange (halo_exchange.h) brought the right values, for tests
 * and for debugging. A correct code does not need it.
 *
 *     dpar_halo_plan_check(x, DPAR_HALO_POISON, &why);          halos become NaN
 *     dpar_halo_plan_exchange(x);
 *     st = dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why);   no NaN is left
 *     st = dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why);      each cell has its owner's value
 *     ... steps ...
 *     st = dpar_halo_plan_check(x, DPAR_HALO_STALE, &why);      no exchange was forgotten */
#ifndef DPARI_DEBUG_HALO_CHECK_H
#define DPARI_DEBUG_HALO_CHECK_H

#include "../base/text.h"
#include "../halo/halo_exchange.h"

/* Kinds of checks. 0 is no check. */
enum {
    /* Sets all halo cells that an exchange fills to NaN (integers: all bits 1) and checks nothing.
     * Local. */
    DPAR_HALO_POISON = 1,
    /* Fails with DPAR_E_ARG if a halo cell that an exchange fills is still NaN; the message names
     * field, cell and rank. For fields whose own values have no NaN. Local. */
    DPAR_HALO_UNFILLED,
    /* Fails with DPAR_E_MISMATCH on all ranks if an exchange would change the bits of a value: a
     * halo is stale, or with a plan of shared points a copy differs from its owner's. The message
     * names field, point, both ranks and both values of the first one. Halos change during the
     * check and are restored afterwards. Collective. Costs an exchange, and memory from
     * dpar_comm_alloc for two copies of the halos. */
    DPAR_HALO_STALE,
    /* Fails with DPAR_E_MISMATCH on all ranks if a halo cell differs from its owner's, and names
     * the first one. Unlike exchanges it uses no transfer lists. Rank 0 gathers the own points of
     * each field by plain messages and arranges them as a serial code would. It compares the halos
     * of all ranks with them cell by cell, with indices by the rules of halo.h. Collective. Slow,
     * and allocates memory for the whole grid on rank 0 with dpar_comm_alloc. */
    DPAR_HALO_WRONG
};
/* Checks the fields of a plan between two exchanges. Returns DPAR_OK if nothing is wrong.
 *
 * what: DPAR_HALO_POISON, ... DPAR_HALO_WRONG. The first two cost O(halo cells).
 *
 * Fails as described above for each check. Fails with DPAR_E_ARG if plan is NULL, there is no such
 * check, or an exchange is in progress. Fields in a device's memory are also DPAR_E_ARG if all
 * halos are sent by messages, because nothing then waits for the device. Other errors are those of
 * the communicator. */
DPAR_API dpar_status dpar_halo_plan_check(dpar_halo_plan *plan, int32_t what, dpar_why *why);

/* Writes a table of the data that a rank sends to each peer in each exchange; nothing if plan is
 * NULL. Its columns are the peer, the way (method), hops, pieces (boxes), bytes, bytes that the
 * peer reads directly, and runs of memory. Hops are the distance in blocks, the largest along any
 * mesh axis, so that a neighbour has 1.
 *
 * With dpar_halo_plan_desc.timers it adds the times of the phases, in microseconds per exchange.
 * One more line follows for each field that is packed because it is not in registered memory,
 * although there are peers that share memory with this rank. Registered memory comes from
 * dpar_comm_alloc of the plan's communicator, or of one that was split from the same communicator.
 * Local. O(peers x pieces). */
DPAR_API void dpar_halo_plan_report(const dpar_halo_plan *plan, dpar_text *out);

#endif
