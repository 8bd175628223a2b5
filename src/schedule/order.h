/* SPDX-License-Identifier: MIT-0 */
/* order - private: what generate.c tells closed.c of an order. */
#ifndef DPARI_SCHEDULE_ORDER_H
#define DPARI_SCHEDULE_ORDER_H

#include "../base/arith.h"
#include "generate.h"

/* Is there such a schedule? OK, or E_ARG, E_DIVIDE, E_RANGE with a sentence why not. O(stages). */
DPARI_API dpar_status dpari_order_check(const dpar_schedule_desc *order, dpar_why *why);

#endif
