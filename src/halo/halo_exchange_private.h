/* SPDX-License-Identifier: MIT-0 */
/* halo_exchange_private - functions of halo_exchange.c that other headers use and that are not in
 * halo_exchange.h. Private. */
#ifndef DPARI_HALO_HALO_EXCHANGE_PRIVATE_H
#define DPARI_HALO_HALO_EXCHANGE_PRIVATE_H

#include "../base/arith.h"
#include "halo_exchange.h"

/* Makes a plan as dpar_halo_plan_make does. With `later` 1, the caller binds the arrays before the
 * first exchange; until then `data` only tells, by not being NULL, that a field has an array on
 * this rank. */
DPARI_API dpar_status dpari_hx_open(dpar_comm *comm, const dpar_halo_plan_desc *desc, int32_t later,
                                    dpar_halo_plan **plan, dpar_why *why);
/* Computes how many bytes of memory a plan needs on this rank, for objects that allocate the memory
 * of their plans. Local. Arrays are not read. */
DPARI_API dpar_status dpari_hx_bytes(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                     int64_t *bytes, dpar_why *why);

/* ---- of this header's own modules ---- */

/* Returns the array that a field of a plan is bound to. */
DPARI_INTERNAL void *dpari_hx_bound(const dpar_halo_plan *plan, int32_t field);
/* Releases the memory of a plan whose world was closed. */
DPARI_INTERNAL void dpari_hx_release(dpar_halo_plan *plan);

#endif
