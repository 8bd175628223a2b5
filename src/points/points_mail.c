/* SPDX-License-Identifier: MIT-0 */
/* Sends items to other ranks, for the search for owners and for movements (points_owner.c,
 * points_move.c). */
#include "points_mail.h"

#include "../comm/agree.h"
#include "points_order.h"

DPARI_INTERNAL void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all)
{
    int32_t i;
    *all = 0;
    for (i = 0; i < n; i++) {
        at[i] = *all;
        *all += count[i];
    }
}

DPARI_INTERNAL int64_t dpari_pt_total(const int64_t *count, int32_t n)
{
    int64_t all = 0;
    int32_t i;
    for (i = 0; i < n; i++) {
        all += count[i];
    }
    return all;
}

/* Allocates memory for n numbers. */
static dpar_status dpari_pt_numbers(dpar_comm *comm, int64_t n, void **memory, dpar_why *why)
{
    return dpari_po_explain(comm, dpar_comm_alloc(comm, (int64_t)sizeof(int64_t) * n, memory), why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_open(dpari_pt_mail *mail, dpar_comm *comm,
                                                    const int32_t *to, int64_t n, int32_t each,
                                                    dpar_status status, dpar_why *why)
{
    const int32_t p = comm->size;
    void *counts = NULL;
    int64_t i;
    dpari_zero(mail, sizeof *mail);
    mail->comm = comm;
    if (status == DPAR_OK) {
        status = dpari_pt_numbers(comm, 4 * (int64_t)p, &counts, why);
    }
    mail->count = (int64_t *)counts;
    status = dpari_agree_on(comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < n; i++) {
        if (to[i] >= 0) {
            mail->count[to[i]] += each;
        }
    }
    status = dpari_po_explain(
        comm, dpar_all_to_all(comm, mail->count, mail->count + 2 * p, 1, DPAR_I64, NULL), why);
    if (status == DPAR_OK) {
        dpari_pt_add_up(mail->count, mail->count + p, p, &mail->outs);
        dpari_pt_add_up(mail->count + 2 * p, mail->count + 3 * p, p, &mail->ins);
        status = dpari_pt_numbers(comm, mail->outs + mail->ins + 1, &mail->memory, why);
    }
    mail->out = (int64_t *)mail->memory;
    mail->in = mail->out ? mail->out + mail->outs : NULL;
    return dpari_agree_on(comm, status, "points", NULL, NULL, why);
}

DPARI_INTERNAL dpar_status dpari_pt_go(dpari_pt_mail *mail, int back, dpar_why *why)
{
    int64_t *n = mail->count, *in = mail->count + 2 * mail->comm->size;
    dpar_status status;
    if (back) {
        status =
            dpar_all_to_all_v(mail->comm, mail->in, in, NULL, mail->out, n, NULL, DPAR_I64, NULL);
    } else {
        status =
            dpar_all_to_all_v(mail->comm, mail->out, n, NULL, mail->in, in, NULL, DPAR_I64, NULL);
    }
    return dpari_po_explain(mail->comm, status, why);
}

DPARI_INTERNAL void dpari_pt_close(dpari_pt_mail *mail)
{
    dpar_comm_release(mail->comm, mail->memory);
    dpar_comm_release(mail->comm, mail->count);
}
