/* SPDX-License-Identifier: MIT-0 */
/* vshape - private: the orders that are a block of 6 slots repeated on a V of 2 p stages (Qi 2024,
 * Pipeline Parallelism with Controllable Memory): V-Half, V-Min and 1F1B-V. */
#ifndef DPARI_SCHEDULE_VSHAPE_H
#define DPARI_SCHEDULE_VSHAPE_H

#include "../base/arith.h"
#include "generate.h"

/* Bytes that making one takes beside the schedule; p and m as dpari_order_check allows. */
DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m);
/* Fills the lists of s, whose ranks, micros, begin and rank_of stand; work: aligned as int64_t. */
DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *s, void *work);

#endif
