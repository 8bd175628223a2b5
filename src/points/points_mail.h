/* SPDX-License-Identifier: MIT-0 */
/* points_mail - an all-to-all of items whose counts only the senders know. Each item is one number,
 * or a few. Private. */
#ifndef DPARI_POINTS_POINTS_MAIL_H
#define DPARI_POINTS_POINTS_MAIL_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* The numbers sent and the numbers received are both sorted by rank. */
typedef struct dpari_pt_mail {
    dpar_comm *comm;
    int64_t *count; /* [4][size]: how many numbers are sent to each rank, where the next one for it
                       is in `out`, how many are received from each rank, and where they begin in
                       `in` */
    int64_t *out, *in;
    int64_t outs, ins; /* how many numbers are in `out` and in `in` */
    void *memory;
} dpari_pt_mail;

/* Sets at[i] to the sum of the counts before i, and *all to the sum of all. */
DPARI_INTERNAL void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all);
/* Returns the sum of n counts. */
DPARI_INTERNAL int64_t dpari_pt_total(const int64_t *count, int32_t n);
/* Begins an all-to-all of n items: counts them by destination, exchanges the counts and allocates
 * `out` and `in`.
 *
 * to:     [n], the destination of each item; an item with a negative one is not sent.
 * each:   how many numbers an item has.
 * status: an earlier error of this rank, which all ranks then return.
 *
 * Collective. dpari_pt_close frees the memory, also after a failure. */
DPARI_INTERNAL dpar_status dpari_pt_open(dpari_pt_mail *mail, dpar_comm *comm, const int32_t *to,
                                         int64_t n, int32_t each, dpar_status status,
                                         dpar_why *why);
/* Sends the numbers. With back 1, sends the answers, which have replaced the numbers received, to
 * the ranks that asked. Collective. */
DPARI_INTERNAL dpar_status dpari_pt_go(dpari_pt_mail *mail, int back, dpar_why *why);
DPARI_INTERNAL void dpari_pt_close(dpari_pt_mail *mail);

#endif
