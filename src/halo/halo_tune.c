/* SPDX-License-Identifier: MIT-0 */
/* Finds the fastest method of an exchange by measuring all possible methods. Ranks compare the
 * medians of the slowest rank, so that all choose the same method. It implements
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

enum {
    DPARI_HX_SAMPLES = 9, /* odd, so that one of them is the median */
    DPARI_HX_TRIES = 12   /* the methods that dpari_hx_try lists */
};
#define DPARI_HX_TUNE_FOR 20e-3 /* seconds to measure each method */

/* Measures a plan. Returns the median time of an exchange on the slowest rank, or 0 and an error in
 * *status. Two more samples are taken before those that count. The first, of one exchange, only
 * touches the memory. The second, of three exchanges, determines the number of exchanges in a
 * sample. */
static double dpari_hx_time(dpar_halo_plan *plan, dpar_status *status)
{
    double sample[DPARI_HX_SAMPLES], mine, slowest = 0.0;
    int64_t times = 1, k;
    int32_t i, j;
    for (i = -2; i < DPARI_HX_SAMPLES && *status == DPAR_OK; i++) {
        *status = dpar_barrier(plan->comm, NULL);
        mine = dpari_os_now();
        for (k = 0; k < times && *status == DPAR_OK; k++) {
            *status = dpar_halo_plan_exchange(plan);
        }
        mine = (dpari_os_now() - mine) / (double)times;
        if (*status == DPAR_OK) {
            *status = dpar_all_reduce(plan->comm, &mine, &slowest, 1, DPAR_F64, DPAR_MAX, NULL);
        }
        if (i == -2) {
            times = 3;
            continue;
        }
        if (i == -1) {
            times = 1 + (int64_t)(DPARI_HX_TUNE_FOR / (double)DPARI_HX_SAMPLES / (slowest + 1e-7));
            continue;
        }
        for (j = i; j > 0 && sample[j - 1] > slowest; j--) {
            sample[j] = sample[j - 1];
        }
        sample[j] = slowest;
    }
    return *status == DPAR_OK ? sample[DPARI_HX_SAMPLES / 2] : 0.0;
}

/* Sets the n-th method to try: messages, packed, direct with long runs of at least 64, 16 or 256
 * bytes, and automatic. Each is tried unordered if n is even, and ordered if it is odd. */
static void dpari_hx_try(dpar_halo_plan_desc *desc, int32_t n)
{
    static const int32_t method[DPARI_HX_TRIES / 2] = {DPAR_HALO_MESSAGES, DPAR_HALO_PACKED,
                                                       DPAR_HALO_DIRECT,   DPAR_HALO_DIRECT,
                                                       DPAR_HALO_DIRECT,   DPAR_HALO_AUTO};
    static const int32_t run_bytes[DPARI_HX_TRIES / 2] = {0, 0, 64, 16, 256, 0};
    desc->ordered = n & 1;
    desc->method = method[n / 2];
    desc->run_bytes = run_bytes[n / 2];
}

/* True if all fields can be ordered. The fields have been checked. */
static int dpari_hx_all_order(const dpar_halo_plan_desc *desc)
{
    int32_t k;
    for (k = 0; k < desc->field_count; k++) {
        if (!dpari_hx_can_order(&desc->field[k])) {
            return 0;
        }
    }
    return !desc->shared;
}

/* Ties are decided by the order of tries: a method replaces the best one only if it is faster. */
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
    if (options) {
        desc = *options;
    }
    best = desc;
    desc.timers = 0;
    desc.memory = NULL;
    desc.bytes = 0;
    if (!comm) {
        return dpari_wrong(why, "dpar_halo_plan_tune: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    for (i = 0; i < DPARI_HX_TRIES && status == DPAR_OK; i++) {
        dpar_halo_plan *plan = NULL;
        double took;
        dpari_hx_try(&desc, i);
        /* All ranks must try a method, or none. Some ranks may be unable to order their fields,
         * because arrays may be compact on some ranks only. They fail here with DPAR_E_NONE. */
        said.text[0] = 0;
        if (!options) {
            status = dpari_wrong(&said, "dpar_halo_plan_tune: desc is NULL");
        } else if (desc.ordered && !can_order) {
            status = DPAR_E_NONE;
        }
        status = dpari_agree(comm, status, &said);
        if (status == DPAR_E_NONE) {
            status = DPAR_OK;
            continue;
        }
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, said.text);
        }
        status = dpar_halo_plan_make(comm, &desc, &plan, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (i == 0) {
            can_order = dpari_hx_all_order(&desc); /* make has checked the fields */
        }
        took = dpari_hx_time(plan, &status);
        if (status == DPAR_OK && (least <= 0.0 || took < least)) {
            best.method = desc.method;
            best.ordered = desc.ordered;
            best.run_bytes = desc.run_bytes;
            least = took;
        }
        if (status == DPAR_OK) {
            status = dpar_halo_plan_free(plan);
        } else {
            (void)dpar_halo_plan_free(plan);
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
