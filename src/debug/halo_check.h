/* SPDX-License-Identifier: MIT-0 */
/* halo_check - did an exchange of halos (halo_exchange.h) bring the right things? For a code that
 * is suspected, or its tests. A code that works needs nothing of it.
 *
 *     dpar_halo_plan_check(x, DPAR_HALO_POISON, &why);      halos are NaN
 *     dpar_halo_plan_exchange(x);
 *     st = dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why);   none is left
 *     st = dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why);      and each is its owner's value
 *     ... steps ...
 *     st = dpar_halo_plan_check(x, DPAR_HALO_STALE, &why);      nobody forgot an exchange */
#ifndef DPARI_DEBUG_HALO_CHECK_H
#define DPARI_DEBUG_HALO_CHECK_H

#include "../base/text.h"
#include "../halo/halo_exchange.h"

/* What to look for. 0 is none of these. */
enum {
    /* Looks for nothing: all halo cells that an exchange fills become NaN (integers: 2^n - 1).
     * Local. */
    DPAR_HALO_POISON = 1,
    /* A NaN that is still there, in a cell that exchanges fill, of fields that have no NaN
     * themselves. E_ARG with field, cell and rank. Local. */
    DPAR_HALO_UNFILLED,
    /* A value that an exchange would change, bit for bit: a halo that is stale, or with a plan of
     * shared points a copy that is not its owner's. E_MISMATCH on all ranks with the first: field,
     * point, both ranks, both values. Halos change while it runs, nothing does afterwards.
     * COLLECTIVE: an exchange, and a copy of the halos (dpar_comm_alloc). */
    DPAR_HALO_STALE,
    /* A halo cell that is not its owner's, found another way than exchanges go. Rank 0 gathers each
     * field's own points by plain messages and puts them together as the serial code would hold
     * them. The halos of all ranks are looked up there, cell by cell: indices by the rules of
     * halo.h, no transfer lists. E_MISMATCH on all ranks with the first. COLLECTIVE; slow, takes
     * memory for the whole grid on rank 0 (dpar_comm_alloc). */
    DPAR_HALO_WRONG
};
/* Checks a plan's fields between exchanges. OK: nothing was found. POISON and UNFILLED cost O(halo
 * cells), the others as said there.
 *
 * E_ARG: found, as said there; or no plan, no such `what`, an exchange that has not ended, or
 * fields in a device's memory where messages carry all (nothing waits for it). Else errors of the
 * communicator. */
DPAR_API dpar_status dpar_halo_plan_check(dpar_halo_plan *x, int32_t what, dpar_why *why);

/* What a rank sends to each peer at each exchange, as a table. Nothing for NULL. Local, O(peers x
 * pieces). Columns: rank, way, blocks between the two at most along any mesh axis (1: a neighbour),
 * pieces (boxes), bytes, bytes that are read where they lie, runs of memory.
 *
 * With options.timers it adds the times of the phases, microseconds an exchange. A line follows for
 * each field that is packed where peers that share memory could read it directly. It is not in
 * memory of dpar_comm_alloc of the plan's communicator, or of one split from the same. */
DPAR_API void dpar_halo_plan_report(const dpar_halo_plan *x, dpar_text *out);

#endif
