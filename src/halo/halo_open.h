/* SPDX-License-Identifier: MIT-0 */
/* halo_open - what other headers call of halo_exchange.c beyond halo_exchange.h. Private. */
#ifndef DPARI_HALO_HALO_OPEN_H
#define DPARI_HALO_HALO_OPEN_H

#include "../base/arith.h"
#include "halo_exchange.h"

/* dpar_halo_plan_init; later: 1: arrays will be bound before the first exchange, `data` only
 * says whether there are any. */
DPARI_API dpar_status dpari_hx_open(void *memory, int64_t bytes, dpar_comm *c,
                                    const dpar_halo_field *fields, int32_t n,
                                    const dpar_halo_plan_desc *options, int32_t later,
                                    dpar_halo_plan **plan, dpar_why *why);

#endif
