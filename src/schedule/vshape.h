/* SPDX-License-Identifier: MIT-0 */
/* vshape - private: the orders V-Half, V-Min and 1F1B-V. They repeat a block of 6 slots on a V of 2
 * p stages (Qi 2024, Pipeline Parallelism with Controllable Memory). */
#ifndef DPARI_SCHEDULE_VSHAPE_H
#define DPARI_SCHEDULE_VSHAPE_H

#include "../base/arith.h"
#include "generate.h"

/* Returns the bytes of working memory for p ranks and m micro-batches, which dpari_order_check has
 * accepted. */
DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m);
/* Writes the lists of `schedule`, whose other fields and arrays are set. work is aligned as for
 * int64_t.
 */
DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *schedule, void *work);

#endif
