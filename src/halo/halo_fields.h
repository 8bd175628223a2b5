/* SPDX-License-Identifier: MIT-0 */
/* halo_fields - checks the fields of a plan, and compares them between ranks. Private. */
#ifndef DPARI_HALO_HALO_FIELDS_H
#define DPARI_HALO_HALO_FIELDS_H

#include "../comm/agree.h"
#include "halo_exchange.h"

/* Checks all fields of a plan, without the other ranks. */
DPARI_INTERNAL dpar_status dpari_hx_check_fields(const dpar_comm *comm,
                                                 const dpar_halo_plan_desc *desc, dpar_why *why);
/* Lists the fields of a descriptor that must be equal on all ranks. given: the descriptor. */
DPARI_INTERNAL void dpari_hx_state(dpari_facts *facts, const void *given);

#endif
