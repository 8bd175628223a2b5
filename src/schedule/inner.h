/* SPDX-License-Identifier: MIT-0 */
/* inner - private: how many bytes of memory the calls of dpar_schedule.h need. A program learns it
 * from why->bytes when a call without memory fails with DPAR_E_ROOM. */
#ifndef DPARI_SCHEDULE_INNER_H
#define DPARI_SCHEDULE_INNER_H

#include "check.h"
#include "generate.h"
#include "lower.h"
#include "place.h"
#include "steps.h"

/* The bytes for dpar_schedule_generate: dpari_schedule_bytes, and for V_HALF, V_MIN and 1F1B_V
 * another 88 m + 72 p + 248 bytes per rank of working memory. -1 if there is no such schedule, and
 * `why` receives the reason. O(stages). */
DPARI_API int64_t dpari_schedule_generate_bytes(const dpar_schedule_desc *order, dpar_why *why);
/* The bytes for dpar_schedule_check. -1 if ranks, stages, chain, micros, slices or begin are not
 * those of a schedule. O(ranks). */
DPARI_API int64_t dpari_schedule_check_bytes(const dpar_schedule *schedule,
                                             const dpar_schedule_check_desc *how);
/* The bytes for dpar_schedule_slots. -1 if dpari_schedule_check_bytes returns -1. O(ranks). */
DPARI_API int64_t dpari_schedule_slots_bytes(const dpar_schedule *schedule);
/* The bytes for dpar_schedule_lower. -1 if it refuses the list or the passes, and `why` receives
 * the reason. O(actions x max_active). */
DPARI_API int64_t dpari_schedule_lower_bytes(const dpar_schedule *in,
                                             const dpar_schedule_lower_desc *how, dpar_why *why);

/* ---- of this header's own modules ---- */

/* The bytes of a schedule. -1 unless there are 1 to 65535 ranks and stages and 0 or more actions.
 * O(1). */
DPARI_INTERNAL int64_t dpari_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions);
/* The bytes for dpar_schedule_read. -1 if the text cannot be read, and `why` receives the reason.
 * O(text). */
DPARI_INTERNAL int64_t dpari_schedule_read_bytes(const dpar_schedule_read_desc *in, dpar_why *why);
/* The bytes for dpar_schedule_simulate. -1 if the struct is not a schedule or has more than 2^32 -
 * 2 actions. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_simulate_bytes(const dpar_schedule *schedule,
                                                     const dpar_schedule_simulate_desc *how);
/* The least bytes for dpar_schedule_optimize. -1 if a job is out of its domain or cannot fit, and
 * `why` receives the reason. O(stages x ranks). */
DPARI_INTERNAL int64_t dpari_schedule_auto_bytes(const dpar_schedule_optimize_desc *job,
                                                 dpar_why *why);
/* The bytes for dpar_schedule_partition. -1 if a number is out of its domain. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_place_bytes(const dpar_schedule_partition_desc *how);

#endif
