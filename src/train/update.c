/* SPDX-License-Identifier: MIT-0 */
/* The parts of a step that ddp, zero1 and fsdp share: its arguments, and the norm of all gradients.
 *
 * Whether a step is skipped depends only on the sum of squares, which is the same on all ranks,
 * because all add the sums of the ranks in the same order. A rank that rejects its arguments still
 * takes part in a collective of each communicator, so that the other ranks learn of it and do not
 * wait. */
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

DPARI_INTERNAL DPARI_COLD void
dpari_update_facts(dpari_facts *facts, const dpar_optimizer *optimizer, int32_t moment_type)
{
    dpari_fact(facts, "optimizer.kind", 0, optimizer->kind);
    dpari_fact(facts, "optimizer.nesterov", 0, optimizer->nesterov);
    dpari_fact(facts, "optimizer.stochastic", 0, optimizer->stochastic);
    dpari_fact_type(facts, "optimizer.moment_type", 0, moment_type);
    dpari_fact_hash(facts, "optimizer.seed", 0, optimizer->seed);
    dpari_fact_real(facts, "optimizer.beta1", 0, optimizer->beta1);
    dpari_fact_real(facts, "optimizer.beta2", 0, optimizer->beta2);
    dpari_fact_real(facts, "optimizer.epsilon", 0, optimizer->epsilon);
    dpari_fact_real(facts, "optimizer.momentum", 0, optimizer->momentum);
    dpari_fact_real(facts, "optimizer.decay", 0, optimizer->decay);
}

DPARI_INTERNAL DPARI_COLD void dpari_update_facts_group(dpari_facts *facts, int32_t i,
                                                        const dpar_optimizer_group *group)
{
    dpari_fact_real(facts, "group[#].decay", i, group->decay);
    dpari_fact_real(facts, "group[#].rate", i, group->rate);
    dpari_fact_real(facts, "group[#].beta1", i, group->beta1);
    dpari_fact_real(facts, "group[#].beta2", i, group->beta2);
}

/* Writes a message into comm->why: two texts and a separator. */
static DPARI_COLD void dpari_update_join(dpar_comm *comm, const char *first, const char *separator,
                                         const char *second)
{
    dpar_text t;
    dpari_text_why(&t, &comm->why);
    dpari_text_print(&t, "%s%s%s", first, separator, second);
}

/* The communicators of a step, in the order in which all ranks use them. Entries may be NULL. */
enum { DPARI_UPDATE_REPLICAS = 1, DPARI_UPDATE_COMMS = 3 };

/* Ends a step for which communicator number k broke: breaks the others, too, because their ranks
 * may wait for this rank, and copies the message to the first one. */
static DPARI_COLD dpar_status dpari_update_break(dpar_comm *const *comm, int32_t k, dpar_status st)
{
    const dpar_why why = comm[k]->why;
    int32_t i;
    for (i = 0; i < DPARI_UPDATE_COMMS; i++) {
        if (i != k) {
            dpar_comm_abort(comm[i], st, why.text);
        }
    }
    comm[0]->why = why;
    return st;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_refuse(dpar_comm *comm, dpar_comm *replicas,
                                                          const dpar_update *update, dpar_status st,
                                                          const dpar_why *own)
{
    dpar_comm *const all[DPARI_UPDATE_COMMS] = {comm, replicas,
                                                update != NULL ? update->model : NULL};
    int32_t k;
    for (k = 0; k < DPARI_UPDATE_COMMS; k++) {
        dpar_why why = *own;
        if (all[k] == NULL) {
            continue;
        }
        (void)dpari_agree_on(all[k], st, "update refused", NULL, NULL, &why);
        if (all[k]->status != DPAR_OK) {
            why = all[k]->why;
            dpari_update_join(all[k], own->text, "; ", why.text);
            return dpari_update_break(all, k, all[k]->status);
        }
    }
    comm->why = *own;
    return st;
}

/* Reduces the squares of all ranks in the order of the ranks. */
static DPARI_COLD dpar_status dpari_update_reduce(dpar_comm *comm, double *squares, int32_t op,
                                                  uint64_t hash, const char *what)
{
    const double mine = *squares;
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_F64;
    call.op = op;
    call.in = &mine;
    call.out = squares;
    call.count = 1;
    return dpari_post_alike(comm, &call, hash, what, NULL);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_norm(dpar_comm *comm, dpar_comm *replicas,
                                                        dpar_update *update, double squares,
                                                        uint64_t hash, const char *what)
{
    dpar_comm *const all[DPARI_UPDATE_COMMS] = {comm, replicas, update->model};
    const double factor = update->factor > 0.0 ? update->factor : 1.0;
    dpar_why why;
    int32_t k;
    int finite;
    for (k = 0; k < DPARI_UPDATE_COMMS; k++) {
        /* Replicas have equal gradients, so the maximum over them is the sum of each. */
        const int32_t op = k == DPARI_UPDATE_REPLICAS ? DPAR_MAX : DPAR_SUM;
        dpar_status st = DPAR_OK;
        if (all[k] != NULL) {
            hash = dpari_hash_real(dpari_hash_real(hash, update->rate), update->clip);
            hash = dpari_hash_real(hash, factor);
            st = dpari_update_reduce(all[k], &squares, op, hash, what);
        }
        if (st == DPAR_E_MISMATCH && all[k]->status == st) {
            const dpar_why before = all[k]->why;
            (void)dpari_optimizer_say(&why,
                                      "update: this rank has rate %.9g, clip %.9g and factor %.9g",
                                      update->rate, update->clip, factor);
            dpari_update_join(all[k], why.text, ". ", before.text);
        }
        if (st != DPAR_OK) {
            return dpari_update_break(all, k, st);
        }
        hash = 0; /* other communicators compare only rate, clip and factor */
    }
    /* Reads the bits, because many training codes are compiled with -Ofast or -ffast-math, and the
     * compiler then assumes that comparisons never meet a NaN. */
    finite = dpari_kern_finite(&squares, 1, DPAR_F64) == 1;
    update->norm = factor * (finite ? dpari_elements_sqrt(squares) : squares);
    update->scale = factor * dpar_optimizer_clip(update->norm, update->clip);
    return dpari_kern_finite(&update->norm, 1, DPAR_F64) == 1 ? DPAR_OK : DPAR_SKIPPED;
}
