/* SPDX-License-Identifier: MIT-0 */
/* halo_check - did an exchange of halos (halo_exchange.h) bring the right things? In a code that is
 * suspected, or in its tests:
 *
 *     dpar_halo_exchange_check(x, DPAR_HALO_POISON, &why);      halos are NaN
 *     dpar_halo_exchange_run(x);
 *     st = dpar_halo_exchange_check(x, DPAR_HALO_UNFILLED, &why);   none is left
 *     st = dpar_halo_exchange_check(x, DPAR_HALO_WRONG, &why);      and each is its owner's value
 *     ... steps ...
 *     st = dpar_halo_exchange_check(x, DPAR_HALO_STALE, &why);      nobody forgot an exchange
 *
 * Nothing here is needed by a code that works. */
#ifndef DPARI_DEBUG_HALO_CHECK_H
#define DPARI_DEBUG_HALO_CHECK_H

#include "../base/text.h"
#include "../halo/halo_exchange.h"

/* What is looked for. There is none at 0. */
enum {
    /* Nothing: all halo cells that an exchange fills become NaN (integers: 2^n - 1). Local. */
    DPAR_HALO_POISON = 1,
    /* A NaN that is still there, in a cell that exchanges fill: E_ARG with field, cell and rank. Of
     * fields that have no NaN themselves. Local. */
    DPAR_HALO_UNFILLED,
    /* A value that an exchange would change, bit for bit: a halo that is stale; with a plan of
     * shared points a copy that is not its owner's. E_MISMATCH on all ranks with the first: field,
     * point, both ranks, both values. Nothing changes (halos do while it runs). COLLECTIVE; an
     * exchange and a copy of the halos (dpar_comm_alloc). */
    DPAR_HALO_STALE,
    /* A halo cell that is not its owner's, over another way: each field's own points are gathered
     * on rank 0 by plain messages, put together as the serial code would hold them, and the halos
     * of all ranks looked up there, cell by cell (indices by the rules of halo.h, no transfer
     * lists). E_MISMATCH on all ranks with the first. COLLECTIVE; slow, takes memory for the whole
     * grid on rank 0 (dpar_comm_alloc). */
    DPAR_HALO_WRONG
};
/* Between exchanges. OK: nothing was found. E_ARG also: no plan, no such `what`, an exchange that
 * has not ended, fields in a device's memory where messages carry all (nothing waits for it). Then
 * errors of the communicator. POISON and
 * UNFILLED cost O(halo cells), the others as said there. */
DPAR_API dpar_status dpar_halo_exchange_check(dpar_halo_exchange *x, int32_t what, dpar_why *why);

/* What a rank sends to each peer at each exchange, as a table: rank, way, blocks between the two at
 * most along any mesh axis (1: a neighbour), pieces (boxes), bytes, those of them that are read
 * where they lie, runs of memory; with options.timers the phases' times, microseconds an exchange;
 * and a line for each field that is packed because it is not in memory of dpar_comm_alloc of the
 * plan's communicator (or of one split from the same), where peers that share memory would read it
 * where it lies. Nothing for NULL. Local, O(peers x pieces). */
DPAR_API void dpar_halo_exchange_report(const dpar_halo_exchange *x, dpar_text *out);

#endif
