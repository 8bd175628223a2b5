/* SPDX-License-Identifier: MIT-0 */
/* halo_plans: makes a plan of n fields; o is NULL for the defaults. */
#ifndef DPAR_HALO_PLANS_H
#define DPAR_HALO_PLANS_H

#include "dpar_halo.h"

#include <string.h>

static inline dpar_halo_plan_desc plan_options(const dpar_halo_field *f, int32_t n,
                                               const dpar_halo_plan_desc *o)
{
    dpar_halo_plan_desc all;
    memset(&all, 0, sizeof all);
    all = o != NULL ? *o : all;
    all.field = f;
    all.field_count = n;
    return all;
}

/* Returns how many bytes this rank needs, without calling the other ranks. */
static inline dpar_status plan_bytes(const dpar_comm *c, const dpar_halo_field *f, int32_t n,
                                     const dpar_halo_plan_desc *o, int64_t *bytes, dpar_why *why)
{
    const dpar_halo_plan_desc all = plan_options(f, n, o);
    return dpari_hx_bytes(c, &all, bytes, why);
}

static inline dpar_status plan_init(void *memory, int64_t bytes, dpar_comm *c,
                                    const dpar_halo_field *f, int32_t n,
                                    const dpar_halo_plan_desc *o, dpar_halo_plan **x, dpar_why *why)
{
    dpar_halo_plan_desc all = plan_options(f, n, o);
    all.memory = memory;
    all.bytes = bytes;
    return dpar_halo_plan_make(c, &all, x, why);
}

/* Finds the fastest method. */
static inline dpar_status plan_tune(dpar_comm *c, const dpar_halo_field *f, int32_t n,
                                    const dpar_halo_plan_desc *o, dpar_halo_plan_desc *best,
                                    double *seconds, dpar_why *why)
{
    *best = plan_options(f, n, o);
    return dpar_halo_plan_tune(c, best, seconds, why);
}

#endif
