/* SPDX-License-Identifier: MIT-0 */
/* order - private: functions of generate.c with which closed_form.c reads a description. */
#ifndef DPARI_SCHEDULE_ORDER_H
#define DPARI_SCHEDULE_ORDER_H

#include "../base/arith.h"
#include "generate.h"

/* Checks whether the schedule that is described exists. Fails with DPAR_E_ARG, DPAR_E_DIVIDE or
 * DPAR_E_RANGE. O(stages). */
DPARI_INTERNAL dpar_status dpari_order_check(const dpar_schedule_desc *order, dpar_why *why);
/* Returns the stages per rank: order->chunks, or the rule's default, 1 or 2. */
DPARI_INTERNAL int32_t dpari_order_chunks(const dpar_schedule_desc *order);
/* Returns the slices of a micro-batch, which are 1 unless the rule is SEQ1F1B. */
DPARI_INTERNAL int32_t dpari_order_slices(const dpar_schedule_desc *order);

#endif
