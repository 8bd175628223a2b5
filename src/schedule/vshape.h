/* SPDX-License-Identifier: MIT-0 */
/* vshape - private: the orders V-Half, V-Min and 1F1B-V. They repeat a block of 6 slots on a V of 2
 * p stages (Qi 2024, Pipeline Parallelism with Controllable Memory). */
#ifndef DPARI_SCHEDULE_VSHAPE_H
#define DPARI_SCHEDULE_VSHAPE_H

#include "../base/arith.h"
#include "generate.h"

/* The bytes of working memory that such an order needs; p and m as dpari_order_check allows. */
DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m);
/* Fills the lists of `schedule`, whose other fields and arrays are filled. work is aligned as for
 * int64_t.
 */
DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *schedule, void *work);

#endif
