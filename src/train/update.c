/* SPDX-License-Identifier: MIT-0 */
/* The parts of a step that ddp, zero1 and fsdp share: its arguments, and the norm of all gradients.
 *
 * Whether a step is skipped depends only on the sum of squares, which is the same on all ranks,
 * because all add the sums of the ranks in the same order. A rank that rejects its arguments still
 * takes part in one collective, so that the other ranks learn of it and do not wait. */
#include "update.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../host/elements.h"
#include "../host/kernel.h"
#include "../host/optimizer.h"
#include "../host/optimizer_private.h"
#include "update_private.h"

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_check(const dpar_update *update,
                                                         const char *name, dpar_why *why)
{
    if (update == NULL) {
        return dpari_wrong(why, "%s: update is NULL", name);
    }
    if (!dpari_finite(update->rate) || update->clip != update->clip || !(update->factor >= 0.0) ||
        !dpari_finite(update->factor)) {
        return dpari_optimizer_say(
            why,
            "%s: rate is %.9g, clip %.9g and factor %.9g, but rate must be finite, clip not NaN, "
            "and factor 0 or more and finite",
            name, update->rate, update->clip, update->factor);
    }
    return DPAR_OK;
}

/* Writes a message into comm->why: two texts and a separator. */
static DPARI_COLD void dpari_update_join(dpar_comm *comm, const char *first, const char *separator,
                                         const char *second)
{
    dpar_text t;
    dpari_text_why(&t, &comm->why);
    dpari_text_print(&t, "%s%s%s", first, separator, second);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_refuse(dpar_comm *comm, dpar_status st,
                                                          const dpar_why *own)
{
    dpar_why why = *own;
    st = dpari_agree_on(comm, st, "update refused", NULL, NULL, &why);
    if (comm->status == DPAR_OK) {
        comm->why = *own;
    } else {
        (void)dpari_repeat(st, &why, comm->why.text);
        dpari_update_join(comm, own->text, "; ", why.text);
    }
    return st;
}

/* Adds the squares of all ranks in the order of the ranks. */
static DPARI_COLD dpar_status dpari_update_add(dpar_comm *comm, double *squares, uint64_t hash,
                                               const char *what)
{
    const double mine = *squares;
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_F64;
    call.op = DPAR_SUM;
    call.in = &mine;
    call.out = squares;
    call.count = 1;
    return dpari_post_alike(comm, &call, hash, what, NULL);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_norm(dpar_comm *comm, dpar_update *update,
                                                        double squares, uint64_t hash,
                                                        const char *what)
{
    const double factor = update->factor > 0.0 ? update->factor : 1.0;
    dpar_why why;
    dpar_status st;
    int finite;
    hash = dpari_hash_real(dpari_hash_real(hash, update->rate), update->clip);
    st = dpari_update_add(comm, &squares, dpari_hash_real(hash, factor), what);
    if (st == DPAR_E_MISMATCH && comm->status == st) {
        const dpar_why before = comm->why;
        (void)dpari_optimizer_say(&why,
                                  "update: this rank has rate %.9g, clip %.9g and factor %.9g",
                                  update->rate, update->clip, factor);
        dpari_update_join(comm, why.text, ". ", before.text);
    }
    if (st == DPAR_OK && update->model != NULL) {
        st = dpari_update_add(update->model, &squares, 0, "update.model");
    }
    if (st != DPAR_OK) {
        return st;
    }
    /* Reads the bits, because many training codes are compiled with -Ofast or -ffast-math, and the
     * compiler then assumes that comparisons never meet a NaN. */
    finite = dpari_kern_finite(&squares, 1, DPAR_F64) == 1;
    update->norm = factor * (finite ? dpari_elements_sqrt(squares) : squares);
    update->scale = factor * dpar_optimizer_clip(update->norm, update->clip);
    return finite ? DPAR_OK : DPAR_SKIPPED;
}
