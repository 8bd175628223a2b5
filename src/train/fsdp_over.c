/* SPDX-License-Identifier: MIT-0 */
/* ZeRO-3 in few lines: each function calls one to three functions of fsdp.c. */
#include "fsdp_over.h"

#include "../base/inner.h"
#include "made.h"

DPAR_API DPARI_COLD dpar_status dpar_fsdp_over(dpar_comm *c, const int64_t *numel, int32_t units,
                                               int32_t optimizer, dpar_fsdp **fsdp, dpar_why *why)
{
    dpar_fsdp_desc o;
    int32_t *ones = c != NULL && units > 0
                        ? (int32_t *)dpari_made_room(c, units * (int64_t)sizeof(int32_t))
                        : NULL;
    dpar_status st;
    int32_t u;
    for (u = 0; ones != NULL && u < units; u++) {
        ones[u] = 1;
    }
    dpari_zero(&o, sizeof o);
    o.units = units;
    o.params_of = ones;
    o.numel = numel;
    o.zero = 3;
    o.prefetch = 1;
    o.type = o.compute = o.gradient = DPAR_F32;
    dpar_optimizer_init(&o.optimizer, optimizer);
    st = dpar_fsdp_make(c, &o, fsdp, why);
    dpari_made_give(ones);
    return st;
}

DPAR_API dpar_status dpar_fsdp_start(dpar_fsdp *f)
{
    const dpar_status st = dpar_fsdp_begin(f, 1);
    if (st == DPAR_OK) {
        dpar_fsdp_zero(f);
    }
    return st;
}

DPAR_API const void *dpar_fsdp_use(dpar_fsdp *f, int32_t u, int32_t direction)
{
    return dpar_fsdp_unshard(f, u, direction) == DPAR_OK ? dpar_fsdp_weight(f, u) : NULL;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_done(dpar_fsdp *f, int32_t u, int32_t direction)
{
    const dpar_status st = dpar_fsdp_reshard(f, u, direction);
    return st == DPAR_OK && direction == DPAR_ACTION_BACKWARD ? dpar_fsdp_ready(f, u) : st;
}

DPAR_API dpar_status dpar_fsdp_update(dpar_fsdp *f, double rate, double clip)
{
    double norm = 0.0;
    dpar_status st = dpar_fsdp_end(f);
    if (st == DPAR_OK && clip > 0.0) {
        st = dpar_fsdp_norm(f, &norm);
    }
    return st == DPAR_OK ? dpar_fsdp_step(f, rate, dpar_optimizer_clip(norm, clip)) : st;
}
