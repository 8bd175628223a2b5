/* SPDX-License-Identifier: MIT-0 */
/* Finds the fastest method of an exchange by measuring all that are possible. Ranks compare the
 * slowest rank's median, so that all choose the same method. It implements
 * dpar_halo_plan_tune. */
#include "halo_exchange.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/os.h"
#include "halo_plan.h"

/* ---- choosing -------------------------------------------------------------------------------- */

enum { DPARI_HX_SAMPLES = 9, DPARI_HX_TRIES = 12 };
#define DPARI_HX_TUNE_FOR 20e-3 /* seconds a way */

/* The slowest rank's median; 0 with *st. */
static double dpari_hx_time(dpar_halo_plan *x, dpar_status *status)
{
    double sample[DPARI_HX_SAMPLES], mine, slowest = 0.0;
    int64_t times = 1, k;
    int32_t i, j;
    for (i = -2; i < DPARI_HX_SAMPLES && *status == DPAR_OK; i++) {
        *status = dpar_barrier(x->c, NULL);
        mine = dpari_os_now();
        for (k = 0; k < times && *status == DPAR_OK; k++) {
            *status = dpar_halo_plan_exchange(x);
        }
        mine = (dpari_os_now() - mine) / (double)times;
        if (*status == DPAR_OK) {
            *status = dpar_all_reduce(x->c, &mine, &slowest, 1, DPAR_F64, DPAR_MAX, NULL);
        }
        if (i < 0) { /* the first is cold */
            times = 1 + (int64_t)(DPARI_HX_TUNE_FOR / (double)DPARI_HX_SAMPLES / (slowest + 1e-7));
            times = i == -2 ? 3 : times;
            continue;
        }
        for (j = i; j > 0 && sample[j - 1] > slowest; j--) {
            sample[j] = sample[j - 1];
        }
        sample[j] = slowest;
    }
    return *status == DPAR_OK ? sample[DPARI_HX_SAMPLES / 2] : 0.0;
}

/* The n-th way to try: messages, packed, direct from runs of three lengths, what AUTO does; each
 * also ordered. */
static void dpari_hx_try(dpar_halo_plan_desc *desc, int32_t n)
{
    desc->ordered = n & 1;
    desc->method = n < 2    ? DPAR_HALO_MESSAGES
                   : n < 4  ? DPAR_HALO_PACKED
                   : n < 10 ? DPAR_HALO_DIRECT
                            : DPAR_HALO_AUTO;
    desc->run_bytes = n < 4 || n >= 10 ? 0 : n < 6 ? 64 : n < 8 ? 16 : 256;
}

/* True if all fields can be ordered. The fields have been checked. */
static int dpari_hx_all_order(const dpar_halo_plan_desc *desc)
{
    int32_t k;
    for (k = 0; k < desc->field_count && dpari_hx_can_order(&desc->field[k]); k++) {
    }
    return !desc->shared && k == desc->field_count;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_tune(dpar_comm *comm, dpar_halo_plan_desc *options,
                                                    double *seconds, dpar_why *why)
{
    dpar_halo_plan_desc desc, best;
    double least = 0.0;
    dpar_status status = DPAR_OK;
    dpar_why said;
    int32_t i;
    int can_order = 0;
    dpari_zero(&desc, sizeof desc);
    desc = options ? *options : desc;
    best = desc;
    desc.timers = 0;
    desc.memory = NULL;
    desc.bytes = 0;
    if (!comm) {
        return dpari_wrong(why, "dpar_halo_plan_tune: comm is NULL");
    }
    for (i = 0; i < DPARI_HX_TRIES && status == DPAR_OK; i++) {
        dpar_halo_plan *x = NULL;
        double took;
        dpari_hx_try(&desc, i);
        /* all ranks must try it, or none: compact halos are told apart by rank */
        said.text[0] = 0;
        status = desc.ordered && !can_order ? DPAR_E_NONE : DPAR_OK;
        status = options ? status : dpari_wrong(&said, "dpar_halo_plan_tune: desc is NULL");
        status = dpari_agree(comm, status, &said);
        if (status == DPAR_E_NONE) {
            status = DPAR_OK;
            continue;
        }
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, said.text);
        }
        status = dpar_halo_plan_make(comm, &desc, &x, why);
        if (status != DPAR_OK) {
            return status;
        }
        can_order =
            i == 0 ? dpari_hx_all_order(&desc) : can_order; /* make has checked the fields */
        took = dpari_hx_time(x, &status);
        if (status == DPAR_OK && (least <= 0.0 || took < least)) {
            best.method = desc.method;
            best.ordered = desc.ordered;
            best.run_bytes = desc.run_bytes;
            least = took;
        }
        if (status == DPAR_OK) {
            status = dpar_halo_plan_free(x);
        } else {
            (void)dpar_halo_plan_free(x);
        }
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    *options = best;
    if (seconds) {
        *seconds = least;
    }
    return DPAR_OK;
}
