/* SPDX-License-Identifier: MIT-0 */
/* order - private: what generate.c tells closed.c of an order. */
#ifndef DPARI_SCHEDULE_ORDER_H
#define DPARI_SCHEDULE_ORDER_H

#include "../base/arith.h"
#include "generate.h"

/* Checks whether there is such a schedule. Fails with DPAR_E_ARG, DPAR_E_DIVIDE or DPAR_E_RANGE.
 * O(stages). */
DPARI_INTERNAL dpar_status dpari_order_check(const dpar_schedule_desc *order, dpar_why *why);

#endif
