/* SPDX-License-Identifier: MIT-0 */
/* transfer_totals: adds up the transfers that a walk of dpar_redistribute_next has left, in
 * elements. Sums that overflow are 2^63 - 1. */
#ifndef TRANSFER_TOTALS_H
#define TRANSFER_TOTALS_H

#include "dpar.h"

typedef struct transfer_totals {
    int64_t transfers; /* number of transfers, with those from the rank to itself */
    int64_t kept;      /* elements that stay on the rank */
    int64_t near_by;   /* elements exchanged with other ranks of the same node */
    int64_t away;      /* elements exchanged with other nodes; all of them without per_node */
} transfer_totals;

static void transfers_total(dpar_redistribute_cursor *w, transfer_totals *sum)
{
    dpar_transfer t;
    sum->transfers = sum->kept = sum->near_by = sum->away = 0;
    while (dpar_redistribute_next(w, &t)) {
        const int64_t volume = dpar_transfer_volume(&t);
        int64_t *to = &sum->away;
        /* A sender may walk the receives of a rank of its node; the sender is then `me`. */
        const int32_t rank = w->me >= 0 && !w->sends ? w->me : w->rank;
        if (t.peer == rank) {
            to = &sum->kept;
        } else if (w->per_node > 0 && t.peer / w->per_node == rank / w->per_node) {
            to = &sum->near_by;
        }
        sum->transfers++;
        *to = volume < 0 || volume > INT64_MAX - *to ? INT64_MAX : *to + volume;
    }
}

#endif
